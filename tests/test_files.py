"""Locks that a kill sets free, and tables that are whole or absent."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skindx.errors import UserError
from skindx.files import atomic_file, atomic_folder, only_writer, write_csv

HOLD = """
import sys, time
from pathlib import Path
from skindx.files import only_writer
with only_writer(Path(sys.argv[1])):
    print('held', flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("name", ["folder", "file"])
def test_one_writer_at_a_time_and_a_kill_sets_it_free(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir() if name == "folder" else path.touch()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(UserError, match=f"another build is at work in {path}; wait for it"),
            only_writer(path, "build", wait_s=0),
        ):
            pass
        holder.kill()
        holder.wait()
    with only_writer(path, wait_s=10):
        pass


def test_a_child_that_inherits_the_lock_holds_on(tmp_path: Path) -> None:
    with only_writer(tmp_path) as lock:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=(lock,),
        )
    with child, pytest.raises(UserError), only_writer(tmp_path, wait_s=0):
        pass
    with only_writer(tmp_path, wait_s=0):
        pass


def test_a_table_is_whole_or_absent(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    rows = [["a,b", 1], ['"', None]]
    write_csv(file, ("x", "y"), rows)
    with file.open(newline="", encoding="utf-8") as opened:
        assert list(csv.reader(opened)) == [["x", "y"], ["a,b", "1"], ['"', ""]]
    before = file.read_bytes()
    with pytest.raises(ZeroDivisionError):
        write_csv(file, ("x",), ([1 / n] for n in (1, 0)))
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)]
)
def test_who_may_read_is_the_users_to_say(
    tmp_path: Path, umask: int, file: int, folder: int
) -> None:
    before = os.umask(umask)
    try:
        with atomic_folder(tmp_path / "folder") as made:
            write_csv(made / "open.csv", ["a"], [])
            with atomic_file(made / "secret", mode=0o600) as temporary:
                temporary.write_text("x")
    finally:
        os.umask(before)
    made = tmp_path / "folder"
    found = [path.stat().st_mode & 0o777 for path in (made, made / "open.csv", made / "secret")]
    assert found == [folder, file, 0o600]
