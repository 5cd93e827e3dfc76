"""Boxes of each annotator, kept separate so that annotators can be compared.

DATASET/annotations.parquet holds the drawings of people, DATASET/proposals.parquet those of
models. The manifest holds what is accepted: the latest drawing of a person, else what the dataset
was built with. A proposal is never accepted by itself.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.data.answer_log import read_answers_to
from skindx.data.box import Box
from skindx.data.manifest import Record, boxes_type, read_rows, table_of, write_manifest

ANNOTATIONS = "annotations.parquet"
PROPOSALS = "proposals.parquet"

BUILT = "recipe"
"""The annotator of the boxes that a dataset was built with."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotator's boxes in one image; boxes () means that there is none."""

    sha256: str
    annotator: str
    """A person, `BUILT`, or a model's name with the start of its hash."""
    when: str
    """UTC, ISO 8601."""
    boxes: tuple[Box, ...]


def read_annotations(dataset: Path) -> list[Annotation]:
    """Return the boxes that people drew, none before the first. Raises UserError."""
    return _read(dataset / ANNOTATIONS, "import the boxes again")


def read_proposals(dataset: Path) -> list[Annotation]:
    """Read what a model proposes, least confident image first. Raises UserError."""
    return _read(dataset / PROPOSALS, "run `skindx boxes propose` again")


def write_annotations(dataset: Path, rows: Iterable[Annotation]) -> None:
    """Write what people drew, atomically, by image and then annotator."""
    _write(dataset / ANNOTATIONS, sorted(rows, key=lambda row: (row.sha256, row.annotator)))


def write_proposals(dataset: Path, rows: Sequence[Annotation]) -> None:
    """Write a model's proposals, atomically, least confident image first.

    An image in which nothing was found comes before all others: it is a miss, or there is none,
    and the model cannot say which.
    """
    _write(dataset / PROPOSALS, sorted(rows, key=lambda row: (confidence(row), row.sha256)))


def confidence(row: Annotation) -> float:
    """Return the highest score among an image's proposed boxes, 0 when there is none."""
    return max((box.score or 0.0 for box in row.boxes), default=0.0)


def annotated(
    old: Iterable[Annotation], new: Iterable[Annotation], records: Iterable[Record]
) -> list[Annotation]:
    """Add drawings; one takes the place of the same annotator's older one of the same image.

    What the manifest held before anybody drew is kept under `BUILT`.
    """
    rows = {(row.sha256, row.annotator): row for row in old}
    drawn = {row.sha256 for row in rows.values()}
    new = list(new)
    for record in records:
        if record.boxes is not None and record.sha256 not in drawn:
            rows[record.sha256, BUILT] = Annotation(record.sha256, BUILT, "", record.boxes)
    rows |= {(row.sha256, row.annotator): row for row in new}
    touched = {row.sha256 for row in new} | drawn
    return [row for row in rows.values() if row.sha256 in touched]


def accepted(
    rows: Iterable[Annotation], wrong: Mapping[str, str] | None = None
) -> dict[str, tuple[Box, ...]]:
    """Return SHA-256 -> boxes of the latest drawing of a person.

    What was drawn before somebody called an image's boxes `wrong` (SHA-256 -> when) is left out.
    """
    since = {sha256: _instant(when) for sha256, when in (wrong or {}).items()}
    people = [
        row
        for row in rows
        if row.annotator != BUILT and not _instant(row.when) <= since.get(row.sha256, float("nan"))
    ]
    people.sort(key=lambda row: (_instant(row.when), row.annotator))
    return {row.sha256: row.boxes for row in people}


def wrong_boxes(dataset: Path) -> dict[str, str]:
    """Return SHA-256 -> when a person called the boxes of an image wrong."""
    answers = read_answers_to(dataset, "box").items()
    return {key[0]: one.when for key, one in answers if one.verdict == "box wrong"}


def store_drawings(
    dataset: Path, rows: Sequence[Annotation], records: Sequence[Record]
) -> list[Record]:
    """Write annotations and the manifest that accepts them; return its records.

    The caller is the dataset's `only_writer`.
    """
    write_annotations(dataset, rows)
    boxes = accepted(rows, wrong_boxes(dataset))
    renewed = [
        record
        if boxes.get(record.sha256, record.boxes) == record.boxes
        else dataclasses.replace(record, boxes=boxes[record.sha256])
        for record in records
    ]
    # A kill before this line is mended by the next drawing, import or build.
    write_manifest(dataset, renewed)
    return renewed


def check_person(name: str) -> None:
    """Raise UserError for a name that no annotator may have."""
    if name == BUILT:
        raise UserError(
            f"{BUILT!r} is what the boxes are called that a dataset was built with; give --by "
            f"another name."
        )


def now() -> str:
    """Return the time as annotations carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _instant(when: str) -> float:
    """Return seconds since 1970; a time that cannot be read is older than all others."""
    try:
        read = datetime.fromisoformat(when)
    except ValueError:
        return float("-inf")
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def _read(path: Path, advice: str) -> list[Annotation]:
    if not path.exists():
        return []
    rows = read_rows(path, Annotation, advice)
    for row in rows:
        row["boxes"] = tuple(Box(**box) for box in row["boxes"])
    return [Annotation(**row) for row in rows]


def _write(path: Path, rows: Sequence[Annotation]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [field.name for field in dataclasses.fields(Annotation)]
    schema = pa.schema([(n, boxes_type() if n == "boxes" else pa.string()) for n in names])
    with atomic_file(path) as temporary:
        pq.write_table(table_of(rows, schema), temporary)
