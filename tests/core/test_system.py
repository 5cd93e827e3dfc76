"""Cores that a process may use, by its affinity and the quotas of its cgroups; free ports."""

import json
import os
import re
import socket
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from command_line import Skindx

from skindx import __version__
from skindx.cli import one_sentence
from skindx.core import machine
from skindx.core.machine import free_port, how_to_install, what_is_missing

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),  # two and a half: the third is there half the time
        ({"cpu.max": "1000 100000"}, 1),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 8),
        ({"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}, 2),
        ({"cpu.max": "nonsense"}, 8),
    ],
)
def test_cores_are_those_of_affinity_and_quota(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "_cgroup_folders", lambda: [tmp_path / "gone", tmp_path])
    assert machine.cpu_count() == cores


def test_this_process_may_use_some() -> None:
    assert 1 <= machine.cpu_count() <= (os.cpu_count() or 1)


def test_a_free_port_is_one_that_the_system_gives_to_no_connection() -> None:
    ports = {machine.free_port() for _ in range(20)}
    assert ports <= set(range(15_000, 30_000))
    assert len(ports) > 1


def test_a_port_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", machine.free_port()))
        listener.listen()
        taken = listener.getsockname()[1]
        monkeypatch.setattr(machine, "_PORTS", [taken] * 100)
        assert machine.free_port() not in (0, taken)


def test_free_memory_of_a_machine_and_of_a_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  1000 kB\nMemAvailable:  900 kB\nHugePages_Total:  0\n")
    assert machine.free_memory(meminfo, tmp_path) == 900 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 200000\ninactive_file 50000\n")
    assert machine.free_memory(meminfo, tmp_path) == 900 * 1024
    (tmp_path / "memory.max").write_text("400000\n")
    assert machine.free_memory(meminfo, tmp_path) == 400_000 - 300_000 + 50_000
    (tmp_path / "memory.max").write_text("200000\n")
    assert machine.free_memory(meminfo, tmp_path) == 0
    assert machine.free_memory() > 0


def test_what_adds_an_extra_works_in_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_to_install("serve") == f"`{sys.executable} -m pip install -e '{ROOT}[serve]'`"
    monkeypatch.setattr(machine, "_has_pip", lambda: False)  # `uv venv` has none
    command = f"`uv pip install --python {sys.executable} -e '{ROOT}[serve]'`"
    assert how_to_install("serve") == command


def test_what_adds_an_extra_works_with_a_wheel_and_in_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "site-packages/skindx/core/machine.py"))
    wheel = tmp_path / f"of mine/skindx-{__version__}-py3-none-any.whl"
    origin = {"url": wheel.as_uri(), "archive_info": {}}  # as pip and uv write it
    installed = SimpleNamespace(read_text=lambda _: json.dumps(origin))
    monkeypatch.setattr(machine.metadata, "distribution", lambda _: installed)
    gone = f"install '{wheel.name}[clinic]'` where its wheel lies"
    assert how_to_install("clinic").endswith(gone)  # and no index is asked for the name skindx
    wheel.parent.mkdir()
    wheel.touch()
    assert how_to_install("clinic").endswith(f"install '{wheel}[clinic]'`")
    monkeypatch.setenv("SKINDX_EXTRAS", "serve,clinic")
    assert "--build-arg EXTRAS=serve,clinic,scan ." in how_to_install("scan")
    assert "EXTRAS=serve,clinic ." in how_to_install("clinic")


def test_every_package_that_the_wheel_imports_is_in_its_core_or_in_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[^\w.-]", line)[0] for line in project["dependencies"]}
    core = {{"opencv-python-headless": "cv2", "pillow": "PIL", "pyyaml": "yaml"}.get(name, name)
            for name in core}  # fmt: skip
    companions = {"markupsafe", "pydantic_core", "huggingface_hub"}  # of jinja2, pydantic, timm
    companions |= {"h11", "python_multipart", "threadpoolctl"}  # of uvicorn, fastapi, scikit-learn
    companions |= {"cssselect", "parsel", "protego", "twisted", "w3lib", "zope"}  # of scrapy
    optional = {"compression", "datasets", "pynvml", "zeus"}  # what is done without them is known
    imported = re.compile(
        r"^ *(?:import|from) ([A-Za-z]\w*)(?:[\w.]*(?: (?:import|as|#) .*)?)$", re.M
    )
    ignored = core | companions | optional | set(sys.stdlib_module_names) | {"skindx"}
    for file in (ROOT / "skindx").rglob("*.py"):
        code = re.sub(r'""".*?"""', "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        for module in set(imported.findall(code)) - ignored:
            assert what_is_missing(ModuleNotFoundError(name=module)), (file, module)


def test_no_extra_but_one_brings_what_is_under_the_agpl() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, needed in extras.items():
        if extra != "detect":
            assert not [need for need in needed if need.startswith(("ultralytics", "nudenet"))]
    assert extras["app"] == ["skindx[serve]"]


def test_every_module_of_an_extra_is_named_with_one_that_brings_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {**import_names(), "pycocotools": "pycocotools"}
    for extra, needed in extras.items():
        if extra in ("all", "app", "dev", "docs"):
            continue
        for line in needed:
            distribution = re.split(r"[^\w.-]", line)[0].lower()
            module = named.get(distribution, distribution.replace("-", "_"))
            if module in ("setuptools", "multipart", "python_multipart", "pyvips_binary"):
                continue
            said = what_is_missing(ModuleNotFoundError(name=f"{module}.part"))
            assert said, (extra, module)
            assert module in said
    assert what_is_missing(ModuleNotFoundError(name="skindx.nothing")) is None
    assert what_is_missing(ModuleNotFoundError()) is None


def import_names() -> dict[str, str]:
    return {"fpdf2": "fpdf", "faiss-cpu": "faiss", "backports-zstd": "backports",
            "mlflow-skinny": "mlflow", "prometheus-client": "prometheus_client",
            "scikit-learn": "sklearn",
            "fhir-resources": "fhir", "pylibjpeg-openjpeg": "openjpeg", "pylibjpeg-rle": "rle",
            "python-gdcm": "gdcm", "google-re2": "re2"}  # fmt: skip


@pytest.mark.parametrize(
    "words", [("train", "data", "--out", "run"), ("bench", "network", "--out", "c.yaml")]
)  # fmt: skip
def test_without_the_extra_a_training_is_a_sentence(
    words: tuple[str, ...], skindx: Skindx, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in ("deepspeed", "psutil"):
        monkeypatch.setitem(sys.modules, module, None)
    code, _, err = skindx(*words)
    assert code == 2
    assert "needs deepspeed, psutil, which are not installed; run `" in err
    assert "[train]'`" in err
    assert not list(tmp_path.iterdir())


def test_a_module_that_nobody_asked_for_before_is_a_sentence_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left, one_sentence():
        raise ModuleNotFoundError("No module named 'numba'", name="numba")
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("error: this needs numba, which is not installed")
    with pytest.raises(ModuleNotFoundError), one_sentence():
        raise ModuleNotFoundError("No module named 'skindx.x'", name="skindx.x")


def test_a_port_that_another_address_holds_is_not_free() -> None:
    """Ranks listen at all addresses, and a listener at any of them keeps them out."""
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        with patch("random.SystemRandom.sample", return_value=[port]):
            assert free_port() != port
