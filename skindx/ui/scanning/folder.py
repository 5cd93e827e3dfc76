"""The private folder of a server's scans: gone with the server, or at the latest with the next."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX, _LOCK = "skindx-scans-", "lock"


@contextmanager
def scans_folder() -> Iterator[Path]:
    """Yield a folder that only this user can read, and delete it in the end.

    Folders that a killed server has left are deleted first: their locks are free.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_left(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder


def _remove_left(folder: Path) -> None:
    with suppress(OSError):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        with (folder / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
