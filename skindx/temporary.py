"""Private folders for what people send: gone with their process, or with the next one's start."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

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
