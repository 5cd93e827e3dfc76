"""Files written aside take their places in a folder; one of them says that all are there."""

import shutil
from pathlib import Path


def move(new: Path, folder: Path, last: str) -> None:
    """Move everything in `new` into `folder`, over older files and folders of the same names.

    The file `last` is removed first and comes last: while it is not there, the rest may be of two
    versions, after a kill too.
    """
    (folder / last).unlink(missing_ok=True)
    for path in sorted(new.iterdir(), key=lambda path: path.name == last):
        target = folder / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
