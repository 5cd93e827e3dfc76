"""Private folders outlive no process for longer than until the next one starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skindx.core import atomic_files
from skindx.core.atomic_files import private_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from skindx.core.atomic_files import private_folder
with private_folder("skindx-test-", Path(sys.argv[1])) as folder:
    (folder / "photo").write_bytes(b"skin")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_is_deleted_by_the_next(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    other = tmp_path / "skindx-other-1"
    other.mkdir()
    (tmp_path / "skindx-test-link").symlink_to(other)
    with private_folder("skindx-test-", tmp_path) as mine:
        assert not left.exists()
        assert mine.stat().st_mode & 0o777 == 0o700
        # One that is at work stays.
        with private_folder("skindx-test-", tmp_path) as another:
            assert mine.exists()
            assert another != mine
    assert {path.name for path in tmp_path.iterdir()} == {"skindx-other-1", "skindx-test-link"}


def test_an_earlier_version_s_lock_in_the_folder_counts(tmp_path: Path) -> None:
    import fcntl

    old = tmp_path / "skindx-test-old"
    old.mkdir()
    with (old / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with private_folder("skindx-test-", tmp_path):
            assert old.exists()
    with private_folder("skindx-test-", tmp_path):
        assert not old.exists()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.open, []

    def swept(path: Path, flags: int, *rest: int, **named: int) -> int:
        calls.append(path)
        if len(calls) == 1:
            Path(path).rmdir()
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(atomic_files.os, "open", swept)
    with private_folder("skindx-test-", tmp_path) as folder:
        assert folder.is_dir()
        assert folder != calls[0]
