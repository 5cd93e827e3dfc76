"""Boxes that a person drew with another tool come back into a dataset."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skindx.data.box import UNKNOWN_SIZE, BoxedImage
from skindx.data.boxes.annotations import (
    BUILT,
    Annotation,
    annotated,
    check_person,
    now,
    read_annotations,
    store_drawings,
)
from skindx.data.boxes.formats import BoxFormat, BoxSource, format_of, read_boxes
from skindx.data.boxes.labelstudio import read_answers
from skindx.data.ledger import file_name
from skindx.data.manifest import Record, read_manifest
from skindx.errors import UserError
from skindx.files import only_writer


@dataclass(frozen=True, slots=True)
class Imported:
    """Imported and refused entries."""

    annotators: Mapping[str, int]
    """Name -> images."""
    boxes: int
    empty: int
    """Images that were reviewed and have no box."""
    replaced: int
    """Images that the same annotator had drawn in before."""
    labels: Mapping[str, int]
    refused: Mapping[str, tuple[str, ...]]
    """Reason -> names of images."""


def import_boxes(
    dataset: Path, path: Path, *, kind: BoxFormat | None = None, by: str = ""
) -> Imported:
    """Take the boxes of a file into the annotations and the manifest of a dataset folder.

    They count as drawn by `by`, now. Label Studio records who drew and when; without `by` the boxes
    of different people stay separate. Annotations that came with our tasks and were not opened
    there are no answer. Images that the dataset does not have, or has in another size, and images
    with boxes outside are refused and counted. Raises UserError, with nothing written, when no
    image is left.
    """
    kind = kind or format_of(path)
    found = _answers(path, kind, by.strip())
    refused: dict[str, list[str]] = defaultdict(list)
    rows: list[Annotation] = []
    with only_writer(dataset):
        records = read_manifest(dataset)
        known = _Names(records)
        for name, who, when, image in found:
            record = known.find(name, image)
            reason = _refusal(record, image) if who else "not annotated in Label Studio"
            if isinstance(record, Record) and not reason:
                rows.append(_annotation(record, image, who, when))
            else:
                refused[reason].append(name)
        if not rows:
            reason, names = max(refused.items(), key=lambda item: len(item[1]))
            raise UserError(
                f"none of the {len(found)} annotations in {path} fits {dataset}: {reason} "
                f"({len(names)}, such as {names[0]}); nothing was written."
            )
        old = read_annotations(dataset)
        drawn = annotated(old, rows, records)
        store_drawings(dataset, drawn, records)
    had = {(row.sha256, row.annotator) for row in old}
    taken = {(row.sha256, row.annotator): row for row in rows}
    return Imported(
        annotators=dict(Counter(who for _, who in taken)),
        boxes=sum(len(row.boxes) for row in taken.values()),
        empty=sum(not row.boxes for row in taken.values()),
        replaced=len(had & taken.keys()),
        labels=dict(Counter(box.label for row in taken.values() for box in row.boxes)),
        refused={reason: tuple(names) for reason, names in refused.items()},
    )


class _Names:
    """Finds the record of an image by its SHA-256, or else by the file name it came under."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_sha: dict[str, Record] = {}
        self._by_name: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            self._by_sha[record.sha256] = record
            self._by_name[file_name(record.source_url)].append(record)

    def find(self, name: str, image: BoxedImage) -> Record | str:
        """Return the record, or the reason why there is none."""
        if image.sha256:
            return self._by_sha.get(image.sha256, "the dataset has no such image")
        same = self._by_name.get(name, [])
        if len(same) > 1:
            return "several images of the dataset have this file name"
        return same[0] if same else "the dataset has no such image"


def _answers(path: Path, kind: BoxFormat, by: str) -> Sequence[tuple[str, str, str, BoxedImage]]:
    check_person(by)
    if kind != "labelstudio":
        if not by:
            raise UserError(f"{kind} does not say who drew the boxes; add --by NAME.")
        when = now()
        images = read_boxes(BoxSource(path=path, kind=kind))
        found = [(name, by, when, image) for name, image in images.items()]
    else:
        found = sorted(read_answers(path, unopened=False), key=lambda answer: answer[2])
        people = sorted({who for _, who, _, _ in found} - {""})
        if by and len(people) > 1:
            raise UserError(
                f"{path} holds annotations of {', '.join(people)}; leave --by out, and they are "
                f"kept apart."
            )
        # Those of the recipe are in the dataset since it was built.
        unnamed = ("",) if by else ("", BUILT)
        found = [
            (name, "" if who in unnamed else by or who, when or now(), image)
            for name, who, when, image in found
        ]
    if not found:
        raise UserError(f"{path} holds no annotated image; there is nothing to import.")
    return found


def _refusal(record: Record | str, image: BoxedImage) -> str:
    if isinstance(record, str):
        return record
    if (image.width, image.height) not in ((record.width, record.height), UNKNOWN_SIZE):
        return "the dataset has the image in another size"
    odd = "it has boxes that are empty or reach outside the image, or shapes that are not boxes"
    return odd if image.refused else ""


def _annotation(record: Record, image: BoxedImage, who: str, when: str) -> Annotation:
    # The person who imports boxes confirms them, also those that a model proposed.
    boxes = [
        dataclasses.replace(box, drawn_by=who, drawn_at=when, score=None) for box in image.boxes
    ]
    return Annotation(record.sha256, who, when, tuple(boxes))
