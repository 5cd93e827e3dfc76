"""Outputs that are whole or absent, by one process at a time, and private folders that go again."""

import csv
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError


@contextmanager
def atomic_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it goes.

    The file gets those bits of `mode` that the user's umask leaves, as any other file does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name(error, path)
        raise


@dataclass(frozen=True, slots=True)
class FolderKind:
    """One kind of folder that a verb writes, and what it may replace."""

    what: str
    """The kind's name with its article, as messages print it, for example "an evaluation"."""
    mark: str = ""
    """File by which an earlier such folder is recognised, moved in last; "": it replaces none."""
    contents: tuple[str, ...] = ()
    """Patterns of the other entries that it may hold at its top."""
    before: tuple[str, ...] = ()
    """Names of entries that are written before the whole is, such as a training's history."""

    def check(self, path: Path) -> None:
        """Raise UserError unless a folder is absent, empty, or an earlier one of this kind alone.

        What stands in its place is deleted once the new one is whole, so nothing of a user's may
        lie there.
        """
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path} is a symbolic link to nothing; give a new or empty folder.")
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; give a new or empty folder for {self.what}.")
        above = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not above.is_dir():
            raise UserError(f"{above} is a file, not a folder; give another folder.")
        if not os.access(above, os.W_OK | os.X_OK):
            raise UserError(
                f"you may not write in {above}, so {path} cannot be created; give another folder."
            )
        names = {entry.name for entry in entries(path)} - _OF_REFUSED if path.exists() else set()
        known = self.mark in names
        patterns = (self.mark, *self.contents) if known else self.before
        if strange := sorted(
            name
            for name in names
            if not any(fnmatchcase(_UNFINISHED.sub("", name), pattern) for pattern in patterns)
        ):
            raise UserError(
                f"{path} is not empty: it holds other files ({', '.join(strange[:3])}), which "
                f"{self.what} would replace; give a new or empty folder."
            )


_OF_REFUSED = {"energy.json"}
"""Names of files that a refused command may leave: its record of energy."""
_CLUTTER = re.compile(
    r"\._.*|\.DS_Store|\.(apdisk|localized|directory|fseventsd|Spotlight-V100|TemporaryItems)"
    r"|\.Trashes|\.Trash-\d+|__MACOSX|Icon\r|(ehthumbs|ehthumbs_vista|thumbs)\.db|desktop\.ini"
    r"|@eaDir|\$RECYCLE\.BIN|System Volume Information",
    re.IGNORECASE,
)
_UNFINISHED = re.compile(r"\.tmp-[0-9a-f]{8}$")
"""Ending of a file's name until the file is whole; a killed process leaves such files."""
_OF_THE_DISK = "lost+found"
_INSIDE = re.compile(r"\.skindx-[0-9a-f]{8}.*")
"""Names of unfinished parts within a folder that cannot be replaced as a whole."""


@contextmanager
def atomic_folder(path: Path, kind: FolderKind = FolderKind("it")) -> Iterator[Path]:
    """Yield a temporary folder; on success it takes the place of `path`, on failure it goes.

    It lies beside `path`, and within it where that is a mount point or the folder around it cannot
    be written: then its entries take the places of the older ones, the mark last. Raises UserError
    for a folder that holds anything but an earlier one of its `kind`.
    """
    path = _behind_link(path)
    finish_folder(path, kind.mark)
    kind.check(path)
    with temporary_folder(path) as temporary:
        yield temporary
        kind.check(path)  # another may have written meanwhile
        _take_place(temporary, path, kind.mark)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder on the file system of the folder `path`, beside or within it.

    It goes in the end. `leftovers` finds what a kill leaves of it.
    """
    path = _behind_link(path)
    name = secrets.token_hex(4)
    if _is_fixed(path):
        temporary = path / f".skindx-{name}"
    else:
        temporary = path.with_name(f"{path.name}.tmp-{name}")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    except FileNotFoundError as error:  # of a file system without folders of ours, such as /proc
        raise UserError(
            f"{path} cannot be created ({error.strerror}); give another folder."
        ) from None
    try:
        yield temporary
    except BaseException as error:
        _name(error, path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_clutter(name: str) -> bool:
    """Tell whether file managers made a file, by its name or a folder's above it.

    Finder, Explorer and others leave such files in every folder that they show, and in zips.
    """
    return any(map(_CLUTTER.fullmatch, name.split("/")))


def entries(path: Path) -> list[Path]:
    """Return what a folder holds, without clutter and unfinished parts written within it."""
    return [
        entry
        for entry in path.iterdir()
        if not (is_unfinished(entry.name) or is_clutter(entry.name) or entry.name == _OF_THE_DISK)
    ]


def below(folder: Path, pattern: str = "*") -> list[Path]:
    """Return what lies below a folder and fits a pattern, in order and without clutter."""
    paths = folder.rglob(pattern)
    return sorted(path for path in paths if not is_clutter(path.relative_to(folder).as_posix()))


def is_unfinished(name: str) -> bool:
    """Return whether a name is that of an unfinished part within a folder."""
    return bool(_INSIDE.fullmatch(name))


def leftovers(path: Path) -> list[Path]:
    """Return what killed writers of the folder `path` have left beside and within it.

    Only for who knows that nobody writes it now. `finish_folder` comes first: an older one may be
    among them.
    """
    path = _behind_link(path)
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    within = path.iterdir() if path.is_dir() else ()
    return [
        *(other for other in beside if other.name.startswith(f"{path.name}.tmp-")),
        *(other for other in within if is_unfinished(other.name)),
    ]


def finish_folder(path: Path, mark: str) -> None:
    """Finish or undo what a kill cut short while a folder's entries took their places within it."""
    for old in path.glob(".skindx-*.old") if path.is_dir() else ():
        with only_writer(path):
            new = old.with_suffix("")
            whole = old.with_suffix(".whole")
            if whole.exists():
                _move_in(whole, path, mark)
            elif new.exists():
                _move_in(old, path, mark)
                shutil.rmtree(new)
            shutil.rmtree(old, ignore_errors=True)


def _behind_link(path: Path) -> Path:
    """Return where a link leads: what is replaced is the folder there, and the link stays."""
    return path.resolve() if path.is_symlink() or path.name in ("", "..") else path


def _is_fixed(path: Path) -> bool:
    """Return whether a folder stays: a mount point, in a folder not ours, or where we stand."""
    if not path.is_dir():
        return False
    ours = os.access(path.absolute().parent, os.W_OK | os.X_OK)
    return is_mount(path) or not ours or path.samefile(Path.cwd())


def is_mount(path: Path) -> bool:
    """Return whether a folder is a mount point, also one bound within its own file system."""
    if os.path.ismount(path):
        return True
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return False
    points = (line.split(b" ")[4] for line in lines)
    plain = (re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), point) for point in points)
    return os.fsencode(path.resolve()) in plain


def _take_place(new: Path, path: Path, mark: str) -> None:
    if new.parent == path:
        _swap(new, path, mark)
    elif not path.exists():
        new.replace(path)
    else:
        # A folder cannot be replaced in one step: move the old one away first.
        old = new.with_name(new.name + ".old")
        try:
            path.replace(old)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM):
                raise
            _copy_in(new, path, mark)
            return
        try:
            new.replace(path)
        except BaseException:
            old.replace(path)
            raise
        shutil.rmtree(old)


def _copy_in(new: Path, path: Path, mark: str) -> None:
    within = path / f".skindx-{secrets.token_hex(4)}"
    try:
        shutil.copytree(new, within, symlinks=True)
        _swap(within, path, mark)
    finally:
        shutil.rmtree(within, ignore_errors=True)


def _swap(new: Path, path: Path, mark: str) -> None:
    """Let the entries of a folder within `path` take the places of the others there.

    Its names tell `finish_folder` how far it came: NEW and NEW.old, the older entries are on their
    way out; NEW.whole and NEW.old, the new ones on their way in; NEW.old alone, all is done.
    """
    with only_writer(path):
        old, whole = new.with_name(f"{new.name}.old"), new.with_name(f"{new.name}.whole")
        old.mkdir()
        try:
            for entry in sorted(entries(path), key=lambda entry: entry.name != mark):
                entry.replace(old / entry.name)
            new.replace(whole)
        except BaseException:
            _move_in(old, path, mark)
            old.rmdir()
            raise
        _move_in(whole, path, mark)
        shutil.rmtree(old)


def _move_in(folder: Path, path: Path, mark: str) -> None:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == mark):
        entry.replace(path / entry.name)
    if folder.suffix == ".whole":
        folder.rmdir()


def _name(error: BaseException, path: Path) -> None:
    """Let an error of the system name the output, where a write said only that it failed."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(4)}")


@contextmanager
def only_writer(path: Path, work: str = "process", wait_s: float = math.inf) -> Iterator[int]:
    """Hold a file or folder against all others who do so; a kill sets it free.

    Yields the descriptor that bears the lock: a child that inherits it holds on until it ends too.
    Raises UserError, which calls the other one a `work`, if it still has it after `wait_s` seconds.
    """
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(
                        f"another {work} is running in {path}; wait until it ends, or stop it."
                    ) from None
                time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)


OLD = ".old"
"""Ends the name under which an upgrade keeps a file that it writes anew."""


def keep_old(path: Path) -> Path:
    """Give a file a second name, FILE.old, before it is written anew; return that name.

    A killed try may have done so before. Raises UserError where FILE.old is another file.
    """
    old = path.with_name(path.name + OLD)
    try:
        os.link(path, old, follow_symlinks=False)
    except FileExistsError:
        if old.is_symlink() or not old.is_file() or sha256_file(old) != sha256_file(path):
            raise UserError(
                f"{old} exists, but a copy of {path.name} must be kept under this name; move "
                f"{old} away and run the same command again."
            ) from None
    except OSError:  # a file system without hard links
        with atomic_file(old) as temporary:
            shutil.copy2(path, temporary)
    return old


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table as CSV atomically, the names of its columns first."""
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the order given, with a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Return the Arrow table of a Parquet file, of these columns that it has, or of all.

    pyarrow's own `read_table` takes folders and filters too, and imports pandas for them. Raises
    what pyarrow raises.
    """
    import pyarrow.parquet as pq

    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no plain file; make it again.")  # a pipe would hang
    with pq.ParquetFile(path) as file:
        table = file.read(columns=columns)
    table.validate(full=True)  # that its text is UTF-8, too
    return table


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@contextmanager
def private_folder(prefix: str, where: Path | None = None) -> Iterator[Path]:
    """Yield a folder that only this user can read, and delete it in the end.

    It is locked while its process lives. Folders of the same prefix that a killed process has left
    are deleted first: their locks are free. `where`: default the folder for temporary files.
    """
    parent = (where or Path(tempfile.gettempdir())).resolve()
    for left in parent.glob(f"{prefix}*"):
        _remove_left(left)
    with ExitStack() as kept:
        folder = None
        while folder is None:
            folder = _locked(kept, prefix, parent)
        yield folder


def memory_folder(least_bytes: int) -> Path | None:
    """Return the file system in memory; None: there is none, or it has less room than this."""
    try:
        roomy = shutil.disk_usage(_SHARED_MEMORY).free > least_bytes
        return _SHARED_MEMORY if roomy and os.access(_SHARED_MEMORY, os.W_OK) else None
    except OSError:
        return None


def _locked(kept: ExitStack, prefix: str, parent: Path) -> Path | None:
    """Return a new locked folder; None: another process removed it before it was locked."""
    made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    folder = Path(kept.enter_context(made))
    with suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY)
        kept.callback(os.close, descriptor)
        with suppress(OSError):  # a network file system without locks: nobody can sweep it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    return folder if folder.exists() else None


def _remove_left(folder: Path) -> None:
    with suppress(OSError), ExitStack() as locks:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        # Earlier versions locked a file in the folder.
        for path in (folder, folder / "lock"):
            if path == folder or path.exists():
                descriptor = os.open(path, os.O_RDONLY)
                locks.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
