"""Locks that a kill sets free; tables and folders that are whole or absent, and whose they are."""

import csv
import errno
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hostile_images import strew

from skindx.core import atomic_files
from skindx.core.atomic_files import (
    FolderKind,
    atomic_file,
    atomic_folder,
    below,
    entries,
    finish_folder,
    is_clutter,
    leftovers,
    only_writer,
    write_csv,
)
from skindx.core.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from skindx.core.atomic_files import only_writer
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
            pytest.raises(UserError, match=f"another build is running in {path}"),
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


PLAY = FolderKind("a play", "mark.json", ("act-*", "props"))


def write_play(path: Path, *acts: str) -> None:
    """Write a folder of a kind: its mark, and one file an act."""
    with atomic_folder(path, PLAY) as made:
        for name in ("mark.json", *acts):
            (made / name).write_text(name)


def fixed(path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool) -> None:
    """Let a folder be a mount point: no rename of it; `known`: the kernel lists it."""
    rename = Path.replace

    def replace(source: Path, target: Path) -> Path:
        if source == path:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", replace)
    if known:
        monkeypatch.setattr(atomic_files, "is_mount", lambda folder: folder == path)


@pytest.mark.parametrize("how", ["plain", "mount", "hidden mount", "here", "link"])
def test_a_folder_takes_the_place_of_an_earlier_one_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    out = tmp_path / "around" / "out"
    out.mkdir(parents=True)
    held = os.open(out, os.O_RDONLY)  # else its number might be given again
    number = out.stat().st_ino
    if "mount" in how:
        fixed(out, monkeypatch, known=how == "mount")
        (out / "lost+found").mkdir()
    given = out
    if how == "here":
        monkeypatch.chdir(out)
        given = Path()
    if how == "link":
        given = tmp_path / "link"
        given.symlink_to(out)
    write_play(given, "act-1", "act-2")
    write_play(given, "act-1", "props")
    kept = {"lost+found"} if "mount" in how else set()
    assert {path.name for path in out.iterdir()} == {"mark.json", "act-1", "props"} | kept
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out.stat().st_ino == number) == ("mount" in how or how == "here")
    os.close(held)
    with pytest.raises(ZeroDivisionError), atomic_folder(given, PLAY) as made:
        (made / "mark.json").write_text(str(1 / 0))
    assert {path.name for path in out.iterdir()} == {"mark.json", "act-1", "props"} | kept
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["thesis.tex", "thesis", ".git", "act"])
@pytest.mark.parametrize("marked", [True, False])
def test_a_folder_with_anything_of_a_user_is_never_replaced(
    tmp_path: Path, name: str, marked: bool
) -> None:
    out = tmp_path / "out"
    if marked:
        write_play(out, "act-1")
    out.mkdir(exist_ok=True)
    (out / name).mkdir()
    for act in (PLAY.check, lambda path: write_play(path, "act-3")):
        with pytest.raises(UserError, match=rf"holds other files \({name}\), which a play would"):
            act(out)
    with pytest.raises(UserError, match="holds other files"), atomic_folder(out):
        pass
    assert (out / name).is_dir()
    assert (out / "act-1").exists() == marked
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("marked", [True, False])
def test_the_unfinished_file_of_a_killed_writer_is_no_users(tmp_path: Path, marked: bool) -> None:
    out = tmp_path / "out"
    kind = FolderKind("a play", "mark.json", ("act-*",), ("act-0",))
    if marked:
        write_play(out, "act-1")
    out.mkdir(exist_ok=True)
    (out / "act-0.tmp-0123abcd").write_text("hal")
    with atomic_folder(out, kind) as made:
        (made / "mark.json").write_text("new")
    assert [path.name for path in out.iterdir()] == ["mark.json"]
    for name in ("thesis.tmp-0123abcd", "act-0.tmp-mine"):
        (out / "mark.json").unlink(missing_ok=True)
        (out / name).write_text("dear")
        with pytest.raises(UserError, match="holds other files"):
            kind.check(out)
        (out / name).unlink()


def test_what_comes_while_a_folder_is_written_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def write_while_another_writes() -> None:
        with atomic_folder(out, PLAY) as made:
            (made / "mark.json").write_text("new")
            out.mkdir()
            (out / "thesis.tex").write_text("dear")

    with pytest.raises(UserError, match=r"other files \(thesis.tex\)"):
        write_while_another_writes()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "thesis.tex"]


def test_what_file_managers_leave_is_no_file_of_ours(tmp_path: Path) -> None:
    for name in ("act-1.txt", ".hidden", "thumbs.jpg", "desktop.init", "in/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
        assert not is_clutter(name), name
    before, plain = entries(tmp_path), below(tmp_path, "*.txt")
    strew(tmp_path)
    assert entries(tmp_path) == before
    assert below(tmp_path, "*.txt") == plain == sorted(plain)
    assert len(plain) == 2


def test_what_cannot_be_a_folder_is_one_sentence_before_all_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to("gone")
    for out, why in (
        ("file", "is a file"),
        ("file/x/y", "is a file"),
        ("nowhere", "a symbolic link to"),
    ):
        with pytest.raises(UserError, match=why):
            PLAY.check(tmp_path / out)
    (tmp_path / "new").mkdir()
    strew(tmp_path / "new")
    (tmp_path / "new/energy.json").write_text("")
    PLAY.check(tmp_path / "new")
    PLAY.check(tmp_path / "not" / "there")
    with pytest.raises(UserError, match="cannot be created"):
        write_play(Path("/proc/nobody makes folders here"))


def test_a_kill_between_any_two_moves_within_a_folder_is_finished_or_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each move may be the last: the next writer sees the older folder or the new one, whole."""
    move, states = Path.replace, []
    out = tmp_path / "out"
    for last in range(7):
        write_play(out, "act-1", "props")
        fixed(out, monkeypatch, known=True)
        moves = iter(range(last))
        monkeypatch.setattr(Path, "replace", lambda a, b, moves=moves: (next(moves), move(a, b))[1])
        # A kill runs no handler of the process; StopIteration stands in for it.
        monkeypatch.setattr(atomic_files.shutil, "rmtree", lambda *_, **__: None)
        monkeypatch.setattr(Path, "rmdir", lambda _: None)
        with suppress(RuntimeError, StopIteration, OSError):
            write_play(out, "act-2")
        monkeypatch.undo()
        finish_folder(out, "mark.json")
        states.append({path.name for path in atomic_files.entries(out)})
        for left in leftovers(out):
            shutil.rmtree(left)
        assert states[-1] in ({"mark.json", "act-1", "props"}, {"mark.json", "act-2"})
    assert states[0] == {"mark.json", "act-1", "props"}
    assert states[-1] == {"mark.json", "act-2"}
