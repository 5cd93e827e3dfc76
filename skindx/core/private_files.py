"""Files that hold somebody's photos or answers: their owner alone may read them.

Every writer of photos of patients, answers, scans, cases, reports, keys and their databases creates
its files here, 0600 in folders of 0700, whatever the umask. A folder that was there before keeps
its mode. Datasets, bundles and runs follow the umask: `skindx.core.atomic_files`.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from skindx.core.atomic_files import FolderKind, atomic_file, atomic_folder, keep_old

_FILE, _FOLDER = 0o600, 0o700


def make_private(folder: Path, *, parents: bool = True) -> None:
    """Create a folder, and those above it that are not there, for this user alone."""
    above = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for missing in reversed(above) if parents else above[:1]:
        try:
            missing.mkdir(_FOLDER)
        except FileExistsError:  # another process was first; it is no folder of ours to change
            continue
        missing.chmod(_FOLDER)  # a umask may have taken more
    if not folder.is_dir():
        folder.mkdir()  # raises what says so


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Return a descriptor of a file, which is created for this user alone; no link is followed."""
    options = flags | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, options)
        with suppress(FileExistsError):  # another process was first
            return _created(path, options)


def _created(path: Path, options: int) -> int:
    descriptor = os.open(path, options | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE)
    os.fchmod(descriptor, _FILE)  # a umask may have taken more
    return descriptor


def new_private(path: Path) -> BinaryIO:
    """Return a new file, open to be written. Raises FileExistsError."""
    return os.fdopen(_created(path, os.O_WRONLY), "wb")


def private_database(path: Path) -> None:
    """Create the file of a SQLite database before SQLite would; one that is there stays.

    Its journal and its write-ahead log get the mode of the file.
    """
    os.close(open_private(path.resolve()))


@contextmanager
def private_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, as `atomic_file` does, of a file for this user alone."""
    make_private(path.parent)
    with atomic_file(path, _FILE) as temporary:
        temporary.chmod(_FILE)
        yield temporary


@contextmanager
def private_output(path: Path, kind: FolderKind) -> Iterator[Path]:
    """Yield a temporary folder, as `atomic_folder` does; what lies in it is for this user alone."""
    make_private(path.parent)
    with atomic_folder(path, kind) as folder:
        close_to_others(folder)
        yield folder
        close_to_others(folder)


def close_to_others(path: Path) -> None:
    """Leave a file, or a folder and what a library has written in it, to this user alone."""
    for one in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if not one.is_symlink():
            one.chmod(_FOLDER if one.is_dir() else _FILE)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    with private_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_private_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with private_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)


def write_private_json(path: Path, value: Any) -> None:
    write_private(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def renew_private(path: Path, content: bytes) -> Path | None:
    """Write a file anew and keep the old one beside it, both private; None: nothing changed."""
    if path.read_bytes() == content:
        return None
    old = keep_old(path)
    close_to_others(old)
    write_private(path, content)
    return old
