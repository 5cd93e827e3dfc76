"""Several files of a dataset folder change together, all or none, whenever a kill comes.

The new files are written into a folder of their own; renaming it is the one step that makes them
count. What is left, moving each to its place, is finished by the next reader of the folder.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skindx.core.errors import UserError

STAGING = ".building"
READY = ".ready"


@contextmanager
def transaction(folder: Path) -> Iterator[Path]:
    """Yield an empty folder; when the block ends its files take their places in `folder` at once.

    When the block fails `folder` stays as it was. Only for who holds `only_writer`.
    """
    recover(folder)
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        staging.replace(folder / READY)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    recover(folder)


def recover(folder: Path) -> None:
    """Finish a change of `folder` that a kill cut short; usually there is none.

    Any number of processes may do so at once. Raises UserError where this one may not write.
    """
    ready = folder / READY
    if not ready.is_dir():
        return
    try:
        with suppress(FileNotFoundError):  # another process was quicker
            for path in sorted(ready.iterdir()):
                with suppress(FileNotFoundError):
                    path.replace(folder / path.name)
            ready.rmdir()
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:  # the next change has come meanwhile
            return
        raise UserError(
            f"a change of {folder} was cut short and cannot be finished here ({error.strerror}); "
            f"read it once as a user who may write there."
        ) from None
