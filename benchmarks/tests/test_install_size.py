"""Sizes of an installation: what an extra needs, bytecode, and what CUDA brings."""

from importlib import metadata
from pathlib import Path

import pytest

from skindx_bench.devices import install_size

NEEDS = {
    "skindx": [
        "torch>=2",
        "page>=1; extra == 'serve'",
        "skindx[serve]; extra == 'all'",
        "never; sys_platform == 'never'",
    ],
    "torch": ["triton", "nvidia_cublas"],
    "page": ["OpenCV-Python", "web[http]"],
    "web": ["socket-of-web; extra == 'http'"],
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        if name in ("triton", "nvidia-cublas", "socket-of-web"):
            raise metadata.PackageNotFoundError(name)
        return NEEDS[name]

    monkeypatch.setattr(install_size.metadata, "requires", requires)


@pytest.mark.usefixtures("installed")
def test_an_extra_brings_what_it_needs_and_no_second_opencv() -> None:
    core = {"skindx", "torch", "triton", "nvidia-cublas"}
    assert install_size.packages(()) == core
    assert install_size.packages(("serve",)) == core | {"page", "web", "socket-of-web"}
    assert install_size.packages(("all",)) == install_size.packages(("serve",))


def test_bytecode_counts_and_an_absent_package_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "heavy_thing-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heavy-thing\nVersion: 1\n")
    record = "heavy.py,,\nheavy.so,,\n__pycache__/heavy.cpython-311.pyc,,\ngone.py,,\n"
    (info / "RECORD").write_text(record)
    (tmp_path / "heavy.py").write_bytes(b"1" * 1000)
    (tmp_path / "heavy.so").write_bytes(b"1" * 20_000)
    cached = Path(install_size.importlib.util.cache_from_source(str(tmp_path / "heavy.py")))
    cached.parent.mkdir()
    cached.write_bytes(b"1" * 300)
    monkeypatch.syspath_prepend(tmp_path)
    assert install_size.size_mb("heavy-thing") == pytest.approx(0.0213)
    assert install_size.size_mb("not-there-at-all") == 0
