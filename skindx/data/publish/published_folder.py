"""The published folder: which may be replaced, and everything in it beside the images.

One process at a time writes, and no forgotten copy stays. The files beside the images are made
from the rows alone, so that a take-down can make them again.
"""

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import (
    FolderKind,
    finish_folder,
    leftovers,
    only_writer,
    sha256_file,
    write_csv,
    write_json,
)
from skindx.core.errors import UserError
from skindx.data.box import BoxedImage
from skindx.data.boxes.coco import coco_json
from skindx.data.layout import ISSUES, MANIFEST, TAXONOMY
from skindx.data.manifest import SPLITS, Issue, write_issues
from skindx.data.publish.croissant import CROISSANT, write_croissant
from skindx.data.publish.dataset_card import CARD, PLOTS, limits_of, write_card, write_plots
from skindx.data.publish.publish_formats import DATA, FOR_PEOPLE, FORMATS
from skindx.data.publish.publish_settings import FACTS, PublishedFacts
from skindx.data.publish.published_rows import PublishedRow, write_rows
from skindx.taxonomy import Taxonomy

SUMS = "SHA256SUMS"
SPLITS_CSV = "splits.csv"
COCO = "coco.json"


def write_side_files(
    folder: Path,
    rows: Sequence[PublishedRow],
    issues: Sequence[Issue],
    taxonomy: Taxonomy,
    facts: PublishedFacts,
) -> None:
    """Write tables, boxes, Croissant, card and check sums beside the images in `folder`."""
    write_rows(folder, rows)
    write_issues(folder, issues)
    columns = ("sha256", "split", "fold", "label", "group")
    placed = ([getattr(row, column) for column in columns] for row in rows)
    write_csv(folder / SPLITS_CSV, columns, placed)
    taxonomy.save(folder / TAXONOMY)
    write_json(folder / COCO, published_coco(rows, facts.name))
    facts.write(folder)
    limits = limits_of(rows, taxonomy, facts)
    # Each file is read once; what is written from here on joins the sums below.
    sums = _sums(folder)
    plots = write_plots(folder, rows, taxonomy)
    pictures = {row.path for row in rows if not FORMATS[facts.format].sharded}
    described = {path: digest for path, digest in sums.items() if path not in pictures}
    write_croissant(
        folder, rows=rows, taxonomy=taxonomy, facts=facts, sums=described, limits=limits
    )
    write_card(
        folder, rows=rows, issues=issues, taxonomy=taxonomy, facts=facts, plots=plots, limits=limits
    )
    sums |= _sums(folder, known=sums)
    lines = [f"{digest}  {path}\n" for path, digest in sorted(sums.items())]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _sums(folder: Path, known: Collection[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file below `folder` by its relative path, but for `known` ones."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: sha256_file(path) for name, path in names.items() if name not in known}


def published_coco(rows: Sequence[PublishedRow], name: str) -> dict[str, Any]:
    """Return COCO's tables of the published rows that were reviewed, with their licences."""
    seen = [row for row in rows if not row.withheld and row.boxes is not None]
    pictures = {_name(row): BoxedImage(row.width, row.height, row.boxes or ()) for row in seen}
    tables = coco_json(pictures)
    urls = {row.licence: row.licence_url for row in seen}
    licence = {key: number for number, key in enumerate(sorted(urls), 1)}
    for image, row in zip(tables["images"], seen, strict=True):
        image.update(sha256=row.sha256, license=licence[row.licence], coco_url=row.source_url)
    licences = [{"id": licence[key], "name": key, "url": urls[key]} for key in licence]
    return {"info": {"description": f"Boxes of {name}"}, "licenses": licences, **tables}


def _name(row: PublishedRow) -> str:
    return row.path if row.path.endswith(row.file_name) else row.file_name


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
