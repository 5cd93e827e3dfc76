"""A refused training leaves its run folder as it was."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.training.checkpoint.names import CHECKPOINTS
from skindx.training.config.engine import SETTINGS
from skindx.training.recorded_step import PLANNED

_WRITTEN_FIRST = (SETTINGS, PLANNED)
"""What a training writes before its ranks look at weights, images and checkpoints."""


@contextmanager
def only_training(run: Path) -> Iterator[bool]:
    """Hold a run's folder against every other training; a kill sets it free.

    Yields whether the folder was there before; one that was not and stays empty goes again. Of the
    ranks that another launcher started the first one holds it for all. Raises UserError while
    another training is at work.
    """
    there = run.exists()
    if os.environ.get("RANK", "0") != "0":
        yield there
        return
    run.mkdir(parents=True, exist_ok=True)
    try:
        with only_writer(run, "training", 0):
            yield there
    finally:
        if not there:
            with suppress(OSError):
                run.rmdir()


@contextmanager
def put_back_if_refused(run: Path, *, there: bool) -> Iterator[None]:
    """Undo what a training has written that is refused before it has made anything.

    A folder that was not `there` goes; settings that were there come back. Checkpoints and finished
    members are never touched, nor a run that another training is at work in.
    """
    before = {name: _bytes(run / name) for name in _WRITTEN_FIRST}
    made = _made(run)
    try:
        yield
    except UserError:
        if _made(run) == made and _is_free(run):
            for name, content in before.items():
                _put_back(run / name, content)
            if not there:
                shutil.rmtree(run, ignore_errors=True)
        raise


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _put_back(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
    elif _bytes(file) != content:
        file.write_bytes(content)


def _made(run: Path) -> set[Path]:
    """Return all files of a run but those that are written first and those beside its ranks."""
    apart = {run / name for name in _WRITTEN_FIRST}
    ranks = run / "ranks"
    return {
        file
        for file in run.rglob("*")
        if file.is_file() and file not in apart and ranks not in file.parents
    }


def _is_free(run: Path) -> bool:
    """Tell whether no other training holds the run's checkpoints."""
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        return True
    try:
        with only_writer(folder, "training", 0):
            return True
    except UserError:
        return False
