"""Everything beside the images; made from the rows alone, so that a take-down can redo it."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import sha256_file, write_csv, write_json
from skindx.data.box import BoxedImage
from skindx.data.boxes.coco import coco_json
from skindx.data.layout import TAXONOMY
from skindx.data.manifest import Issue, write_issues
from skindx.data.publish.card import write_card
from skindx.data.publish.croissant import write_croissant
from skindx.data.publish.facts import Facts
from skindx.data.publish.limits import limits_of
from skindx.data.publish.manifest import write_rows
from skindx.data.publish.plots import write_plots
from skindx.data.publish.row import Row
from skindx.taxonomy import Taxonomy

SUMS = "SHA256SUMS"
SPLITS_CSV = "splits.csv"
COCO = "coco.json"


def write_side_files(
    folder: Path, rows: Sequence[Row], issues: Sequence[Issue], taxonomy: Taxonomy, facts: Facts
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
    pictures = {row.path for row in rows if facts.format == "imagefolder"}
    described = {path: digest for path, digest in sums.items() if path not in pictures}
    write_croissant(
        folder, rows=rows, taxonomy=taxonomy, facts=facts, sums=described, limits=limits
    )
    write_card(
        folder,
        rows=rows,
        issues=issues,
        taxonomy=taxonomy,
        facts=facts,
        plots=plots,
        limits=limits,
    )
    sums |= _sums(folder, known=sums)
    lines = [f"{digest}  {path}\n" for path, digest in sorted(sums.items())]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _sums(folder: Path, known: Collection[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file below `folder` by its relative path, but for `known` ones."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: sha256_file(path) for name, path in names.items() if name not in known}


def published_coco(rows: Sequence[Row], name: str) -> dict[str, Any]:
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


def _name(row: Row) -> str:
    return row.path if row.path.endswith(row.file_name) else row.file_name
