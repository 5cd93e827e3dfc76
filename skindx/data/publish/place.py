"""The published folder: which one may be replaced, by one process at a time, leaving no copies."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skindx.core.atomic_files import FolderKind, finish_folder, leftovers, only_writer
from skindx.core.errors import UserError
from skindx.data.layout import ISSUES, MANIFEST, TAXONOMY
from skindx.data.manifest import SPLITS
from skindx.data.publish.card import CARD
from skindx.data.publish.croissant import CROISSANT
from skindx.data.publish.facts import FACTS
from skindx.data.publish.imagefolder import FOR_PEOPLE
from skindx.data.publish.plots import PLOTS
from skindx.data.publish.shard_names import DATA
from skindx.data.publish.side_files import COCO, SPLITS_CSV, SUMS

_TABLES = (MANIFEST, ISSUES, TAXONOMY, SPLITS_CSV, COCO, CROISSANT, CARD, SUMS, FOR_PEOPLE)
PUBLISHED = FolderKind("a published dataset", FACTS, (*_TABLES, PLOTS, DATA, *SPLITS))


def check_place(out: Path, dataset: Path) -> None:
    """Raise UserError unless `out` is absent, empty or an earlier published folder."""
    if out.is_symlink():
        raise UserError(f"{out} is a link; give --out a new or empty folder.")
    finish_folder(out, FACTS)
    PUBLISHED.check(out)
    here, there = dataset.resolve(), out.resolve()
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise UserError(
            f"{out} and the private dataset {dataset} lie in each other; give --out a folder "
            f"elsewhere."
        )


def is_published(out: Path) -> bool:
    """Tell whether `publish` wrote this folder, which a kill may have left under its old name."""
    old = [path for path in leftovers(out) if path.suffix in (".old", ".whole")]
    return any((folder / FACTS).is_file() for folder in (out, *old))


@contextmanager
def cleared_place(out: Path) -> Iterator[None]:
    """Hold the folder around `out`, where one process at a time writes and renames.

    What a killed one left beside or within `out` is cleared away first, so that no forgotten copy
    outlives a take-down; where it was killed between its two renames, the old folder comes back.
    Raises UserError while another process writes there.
    """
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with only_writer(parent, "publish or take-down", wait_s=0):
        _clear_away(out)
        yield


def _clear_away(out: Path) -> None:
    finish_folder(out, FACTS)
    for path in leftovers(out):
        if path.name.endswith(".old") and not out.exists():
            path.rename(out)
        else:
            shutil.rmtree(path)
