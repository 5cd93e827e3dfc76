"""No verb runs a module that lies in the current folder, nor does any process that it starts."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dicom_files import dicom, pixels
from paint_images import paint, save

ROOT = Path(__file__).parents[2]
TRAPS = ("skindx", "numpy", "pickle", "socket", "json", "multiprocessing", "random")
SKINDX = str(Path(sys.executable).with_name("skindx"))
CHILDREN = """
import multiprocessing, subprocess, sys
from pathlib import Path
from skindx.core.machine import child_environment, python_command, spawn_context
from skindx.imaging.dicom import read_dicom
from skindx.workers.worker_process import module_command, start

if __name__ == "__main__":
    read_dicom(Path("photo.dcm").read_bytes())
    context = spawn_context()
    queue = context.Queue()
    child = context.Process(target=queue.put, args=(1,))
    child.start()
    assert queue.get(timeout=60) == 1
    child.join()
    assert start(module_command("json.tool"), stdin=subprocess.DEVNULL).wait() == 1
    code = "import numpy, random, subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c',"
    code += " 'import json, pickle, socket']))"
    assert start(python_command("-c", code)).wait() == 0
"""


def lay(folder: Path, traps: tuple[str, ...] = TRAPS) -> Path:
    """Fill a folder with a photo and traps; return the file that these write into."""
    folder.mkdir(exist_ok=True)
    sprung = folder.parent / f"sprung-{folder.name}"
    for name in traps:
        (folder / f"{name}.py").write_text(
            f"import sys; open({str(sprung)!r}, 'a').write(f'{{__name__}} {{sys.orig_argv}};')\n"
        )
    (folder / "photo.dcm").write_bytes(dicom(pixels().tobytes(), 48, 64))
    save(folder / "photo.jpg", paint(1))
    return sprung


def run(
    folder: Path, *command: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    safe = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        command,
        cwd=folder,
        env=safe | {"TORCH_CPP_LOG_LEVEL": "ERROR"} | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def read(sprung: Path) -> str:
    return sprung.read_text() if sprung.exists() else ""


def test_a_trap_springs_for_a_plain_child(tmp_path: Path) -> None:
    sprung = lay(tmp_path / "photos")
    run(tmp_path / "photos", sys.executable, "-c", "import random")
    assert read(sprung).startswith("random [")


def test_no_child_of_a_program_imports_from_its_folder(tmp_path: Path) -> None:
    sprung = lay(tmp_path / "photos")
    (tmp_path / "program.py").write_text(CHILDREN)
    done = run(tmp_path / "photos", sys.executable, str(tmp_path / "program.py"))
    assert done.returncode == 0, done.stderr
    assert read(sprung) == ""


def test_a_path_that_the_user_sets_still_counts(tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "mine.py").write_text("print('mine')")
    code = "from skindx.workers.worker_process import *; start(module_command('mine')).wait()"
    given = {"PYTHONPATH": str(tmp_path / "extra")}
    assert run(tmp_path, sys.executable, "-c", code, environment=given).stdout == "mine\n"


def test_the_command_line_starts_nothing_of_the_folder(tmp_path: Path) -> None:
    """Python itself takes a `skindx.py` for `python -m skindx`, and no other module."""
    photos = tmp_path / "photos"
    sprung = lay(photos)
    for number in range(6):
        label = photos / "images" / ("psoriasis", "acne")[number % 2]
        save(label / f"{number}.jpg", paint(number, 320, 240))
    done = run(photos, SKINDX, "build", "images", "--out", "data")
    assert done.returncode == 0, done.stderr
    (photos / "skindx.py").unlink()
    done = run(photos, sys.executable, "-m", "skindx", "--version")
    assert done.returncode == 0, done.stderr
    assert read(sprung) == ""


def test_every_child_is_started_in_one_way() -> None:
    """An interpreter is named where it is started; elsewhere only in words for a person."""
    starts = re.compile(
        r"sys\.executable,\s+(\"-|\*)|get_context\(\"(spawn|forkserver)|\"python3?\", \"-"
    )
    places = [
        str(path.relative_to(ROOT))
        for folder in ("skindx", "methods/skindx_methods", "benchmarks/skindx_bench")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if starts.search(path.read_text())
    ]
    assert places == ["skindx/core/machine.py"]
    assert "PYTHONSAFEPATH=1" in (ROOT / "train/slurm.sbatch").read_text()
    assert "PYTHONSAFEPATH=1" in (ROOT / "app/Dockerfile").read_text()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_verb_starts_anything_of_the_folder(tmp_path: Path) -> None:
    here = tmp_path / "photos"
    sprung = lay(here)
    for number in range(40):
        label = here / "images" / ("psoriasis", "acne")[number % 2]
        save(label / f"{number}.jpg", paint(number, 320, 240))
    quick = ("--set", "recipe.epochs=1", "--set", "engine.ranks=2")
    for words in (
        ("demo", "--out", "demo"),
        ("doctor",),
        ("new", "images", "--out", "new"),
        ("build", "images", "--out", "data"),
        ("audit", "data", "--workers", "2"),
        ("plan", "data"),
        ("train", "data", "--out", "run", *quick),
        ("evaluate", "run/bundle", "data"),
        ("leak", "run/bundle", "images"),
        ("publish", "data", "--to", "published"),
        ("diagnose", "run/bundle", "photo.dcm"),
        ("scan", "run/bundle", "photo.jpg", "--out", "scan"),
    ):
        done = run(here, SKINDX, *words)
        print(words[0], done.returncode, done.stderr[-300:])
        assert read(sprung) == "", words
    serving = subprocess.Popen([SKINDX, "serve", "demo/bundle", "--port", "0"], cwd=here)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            serving.wait(20)
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(60)
    assert read(sprung) == ""
