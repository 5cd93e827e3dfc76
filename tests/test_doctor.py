import importlib.metadata
import os
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from skindx import doctor
from skindx.core.machine import how_to_install
from skindx.doctor import (
    DISTRIBUTIONS,
    OPENCV,
    DoctorFinding,
    TorchFacts,
    compiler,
    disk,
    examine,
    extras,
    headers,
    nvidia_driver,
    opencv,
    python,
    render,
    torch_facts,
    torch_finding,
    writable,
)

GPU_BUILD = TorchFacts(version="2.15.0", cuda="13.2")


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(0o755)
    return path


def pretend(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_the_machine_that_runs_the_tests_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skindx.doctor.MIN_FREE_GB", 0.1)
    findings = examine()
    assert [finding for finding in findings if finding.required and not finding.ok] == []
    assert len({finding.name for finding in findings}) == len(findings)
    assert all(finding.advice or finding.ok for finding in findings)


def test_a_compiler_is_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "torch_facts", TorchFacts)
    monkeypatch.setenv("CXX", "no-such-compiler")
    by_name = {check.name: check for check in examine()}
    assert not by_name["torch and accelerator"].ok
    assert not by_name["C++ compiler"].ok
    assert not by_name["C++ compiler"].required


def test_old_python_is_refused() -> None:
    assert python((3, 11, 0)).ok
    assert python((3, 12, 1)).ok
    assert not python((3, 10, 9)).ok


def test_a_compiler_must_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It answers --version, yet cannot find its standard library.
    body = (
        "if '--version' not in sys.argv: sys.exit('<stdin>:1: fatal error: string: No such file')"
    )
    monkeypatch.setenv("CXX", str(script(tmp_path / "half-compiler", body)))
    found = compiler()
    assert not found.ok
    assert "fatal error: string" in found.detail
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert compiler().detail == "no-such-compiler does not run"


def test_missing_headers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert headers().detail == f"{tmp_path / 'Python.h'} is missing"
    (tmp_path / "Python.h").touch()
    assert headers().ok


@pytest.mark.parametrize(
    ("facts", "driver", "ok", "said"),
    [
        (TorchFacts(error="No module named 'torch'"), "", False, "No module.*--force-reinstall"),
        (GPU_BUILD, "", True, "no accelerator"),
        (TorchFacts(version="2.15.0", cuda="13.2", device="cuda"), "580.1", True, "driver 580.1"),
        (TorchFacts(version="2.15.0", device="mps"), "", True, "on mps"),
        (TorchFacts(version="2.15.0+cpu"), "580.1", False, "install a CUDA build"),
        (GPU_BUILD, "550.54.14", False, "too old for CUDA 13.2: update it to 580"),
        (TorchFacts(version="2.9.0", cuda="12.8"), "525.60", False, "start it with its GPUs"),
        (GPU_BUILD, "not answering", False, "Run nvidia-smi"),
        (
            TorchFacts(version="2.15.0", cuda="13.2", device="cuda", error="no kernel image"),
            "580.1",
            False,
            "no kernel image.*another torch build",
        ),
    ],
)
def test_torch_and_driver_are_matched(
    monkeypatch: pytest.MonkeyPatch, facts: TorchFacts, driver: str, ok: bool, said: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = torch_finding(facts, driver)
    assert found.ok is ok
    assert re.search(said, f"{found.detail} {found.advice}")


def test_a_hidden_gpu_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES='' may hide" in torch_finding(GPU_BUILD, "580.1").advice


def test_torch_that_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    for code, error in [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13"),
        ("import os; os.abort()", "exit code -6"),
    ]:
        monkeypatch.setattr(doctor, "_TORCH_PROBE", code)
        facts = torch_facts()
        assert facts.version == ""
        assert facts.error.startswith(error)


@pytest.mark.parametrize(
    ("body", "driver"),
    [
        ("print('580.65.06\\n580.65.06')", "580.65.06"),
        ("sys.exit('NVIDIA-SMI has failed')", "not answering"),
    ],
)
def test_the_driver_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, driver: str
) -> None:
    script(tmp_path / "nvidia-smi", body)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert nvidia_driver() == driver


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = {
        extra: tuple(
            re.split(r"[<>=]", need)[0] for need in project["optional-dependencies"][extra]
        )
        for extra in DISTRIBUTIONS
    }
    assert declared == DISTRIBUTIONS


def test_a_missing_extra_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {**dict.fromkeys(DISTRIBUTIONS["data"], "1.0"), "numba": "1.13"})
    by_name = {extra.name: extra for extra in extras()}
    assert by_name["extra data"].ok
    train = by_name["extra train"]
    assert (train.ok, train.required) == (False, False)
    assert (
        train.detail == "albumentations missing, deepspeed missing, matplotlib 1.0, numba 1.13, "
        "psutil missing, scikit-learn missing, setuptools missing, sqlalchemy missing"
    )
    assert train.advice == f"Run: {how_to_install('train')}"


def test_two_opencv_wheels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"opencv-python": "4.11", "opencv-python-headless": "5.0"})
    found = opencv()
    assert (found.ok, found.required) == (False, True)
    assert found.detail == "opencv-python 4.11 beside opencv-python-headless 5.0"
    assert "pip uninstall -y opencv-python " in found.advice
    assert "uninstall -y opencv-python-headless" not in found.advice
    for only in OPENCV:
        pretend(monkeypatch, {only: "5.0"})
        assert opencv().ok
    pretend(monkeypatch, {})
    assert opencv().detail == "not installed"


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(free: float) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free))

    full(4.9e9)
    found = disk("disk here", tmp_path / "not" / "made" / "yet")
    assert not found.ok
    assert found.detail.startswith("4.9 GB free")
    full(5e9)
    assert disk("disk here", tmp_path).ok


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    assert writable(tmp_path / "not" / "made").ok
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert not writable(tmp_path / "file").ok
    # /proc refuses files even to root.
    found = writable(Path("/proc"))
    assert not found.ok
    assert "XDG_CACHE_HOME" in found.advice


def test_the_table_shows_advice_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = render(
        [
            DoctorFinding("one", True, "[bold]fine[/bold]", "do nothing"),
            DoctorFinding("two", False, "broken", "mend it"),
            DoctorFinding("three", False, "absent", "get it", required=False),
        ]
    )
    rows = [line.replace("│", " ").split() for line in text.splitlines() if line.startswith("│")]
    assert rows == [
        ["ok", "one", "[bold]fine[/bold]"],
        ["FIX", "two", "broken", "mend", "it"],
        ["note", "three", "absent", "get", "it"],
    ]
