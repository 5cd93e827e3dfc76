"""The published folder: which one may be replaced, by one process at a time, leaving no copies."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skindx.data.publish.facts import FACTS
from skindx.errors import UserError
from skindx.files import only_writer


def check_place(out: Path, dataset: Path) -> None:
    """Raise UserError unless `out` is absent, empty or an earlier published folder."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is a file or a link; give --out a new or empty folder.")
    if out.is_dir() and any(out.iterdir()) and not (out / FACTS).exists():
        raise UserError(
            f"{out} holds other files ({min(e.name for e in out.iterdir())}) and was not written "
            f"by `skindx publish`; give --out a new or empty folder."
        )
    here, there = dataset.resolve(), out.resolve()
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise UserError(
            f"{out} and the private dataset {dataset} lie in each other; give --out a folder "
            f"elsewhere."
        )


def is_published(out: Path) -> bool:
    """Tell whether `publish` wrote this folder, which a kill may have left under its old name."""
    old = [path for path in _left_beside(out) if path.name.endswith(".old")]
    return any((folder / FACTS).is_file() for folder in (out, *old))


@contextmanager
def cleared_place(out: Path) -> Iterator[None]:
    """Hold the folder around `out`, where one process at a time writes and renames.

    What a killed one left beside `out` is cleared away first, so that no forgotten copy outlives
    a take-down; where it was killed between its two renames, the old folder comes back. Raises
    UserError while another process writes there.
    """
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with only_writer(parent, "publish or take-down", wait_s=0):
        _clear_away(out)
        yield


def _left_beside(out: Path) -> list[Path]:
    parent = out.absolute().parent
    beside = parent.iterdir() if parent.is_dir() else ()
    return [path for path in beside if path.name.startswith(f"{out.name}.tmp-")]


def _clear_away(out: Path) -> None:
    for path in _left_beside(out):
        if path.name.endswith(".old") and not out.exists():
            path.rename(out)
        else:
            shutil.rmtree(path)
