"""The process that forks sandboxed ones: one for all, of this moment, and gone with its owner."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from paint_images import paint, save

import skindx
from skindx.data.publish import clean_images
from skindx.data.screening.screen import ScreenSettings, screen_files


def screen(*paths: Path) -> list[str | None]:
    found = screen_files(paths, ScreenSettings(), ("perceptual",), workers=1)
    return [screened.reason for screened in found]


def servers(of: int = 0) -> list[int]:
    """Return those that a process, this one unless given, has started itself."""
    # The kernel's list of children may leave some out while others end, so all parents are asked.
    return [child.pid for child in psutil.Process(of or None).children() if _is_server(child.pid)]


def _is_server(pid: int) -> bool:
    try:
        return b"skindx.workers.sandbox" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return save(tmp_path / "a.jpg", paint(1))


def test_one_serves_every_call_and_every_fork(image: Path) -> None:
    assert screen(image) == [None]
    (server,) = servers()
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if screen(image) == [None] and servers() == [] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert screen(image, image) == [None, None]
    assert servers() == [server]


def test_another_is_started_for_one_that_was_killed(image: Path) -> None:
    screen(image)
    (server,) = servers()
    os.kill(server, signal.SIGKILL)
    assert screen(image) == [None]
    assert servers() not in ([server], [])


def test_its_processes_are_where_the_caller_is(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen(image)
    monkeypatch.chdir(tmp_path)
    assert screen(Path(image.name)) == [None]
    before = os.umask(0o077)
    try:
        (tmp_path / "clean").mkdir()
        list(clean_images.clean_files([image], tmp_path / "clean", ScreenSettings()))
    finally:
        os.umask(before)
    (clean,) = (tmp_path / "clean").iterdir()
    assert stat.S_IMODE(clean.stat().st_mode) == 0o600


CALLER = """
import sys, time
from pathlib import Path
from skindx.data.screening.screen import ScreenSettings, screen_files
screen_files([Path(sys.argv[1])], ScreenSettings(), ("perceptual",), workers=1)
print("screened", flush=True)
time.sleep(600)
"""


def test_it_ends_with_an_owner_that_is_killed(image: Path) -> None:
    command = [sys.executable, "-c", CALLER, str(image)]
    with subprocess.Popen(
        command, cwd=Path(skindx.__file__).parents[1], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "screened\n"
        (server,) = servers(owner.pid)
        owner.kill()
    deadline = time.monotonic() + 60
    while _is_server(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)
