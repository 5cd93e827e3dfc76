"""Errors that the command line reports in one sentence, and a disk without room as one of them."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(ValueError):
    """Bad input, reported in one sentence: the value, what was allowed, what to do next.

    The command line prints it without a traceback and exits with code 2.
    """


class JobError(RuntimeError):
    """A process that was started for the user failed; see its error above this sentence.

    The command line prints it without a second traceback and exits with code 1.
    """


FULL_DISK = 5
"""Exit code by which a process of ours says that it had no room to write."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_LITTLE_BYTES = 65_536


def no_room(error: BaseException | None) -> bool:
    """Tell whether a full disk, or a quota that is used up, is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False


def is_full(folder: Path) -> bool:
    """Tell whether next to nothing can be written in a folder."""
    try:
        return shutil.disk_usage(folder).free < _LITTLE_BYTES
    except OSError:
        return False


def full_disk(folder: Path) -> UserError:
    """Return the error of a job that found no room for what it makes in `folder`."""
    return UserError(
        f"the disk of {folder} is full; make room there and run the same command again, which "
        f"goes on with what is finished."
    )


@contextmanager
def needs_room(folder: Path) -> Iterator[None]:
    """Raise UserError where the block finds no room in `folder`; other errors stay as they are.

    Some libraries say only that fewer bytes were written than asked for: then the disk is asked.
    """
    try:
        yield
    except OSError as error:
        if no_room(error) or (error.errno is None and is_full(folder)):
            raise full_disk(folder) from None
        raise
