"""Boxes as reviewers decide them: right as proposed or drawn anew, or wrong.

Each decision is on disk at once: in the annotations, and in the manifest that accepts them.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.data.box import Box, RawBox, boxed
from skindx.data.boxes.annotations import (
    Annotation,
    annotated,
    confidence,
    now,
    read_annotations,
    read_proposals,
    store_drawings,
)
from skindx.data.manifest import Record, read_manifest

LESION = "lesion"

_WAIT_S = 0.5
"""Seconds to wait for the dataset: more than a boxes import takes, less than a person waits."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Before:
    """Boxes of an image before they were decided."""

    record: Record
    rows: tuple[Annotation, ...]


class BoxReview:
    """The boxes of a dataset; changes `records`, which it shares with its owner."""

    def __init__(self, dataset: Path, records: dict[str, Record]) -> None:
        """Read annotations and proposals. Raises UserError for damaged ones."""
        self._dataset, self._records = dataset, records
        self._rows = read_annotations(dataset)
        self._proposals = {row.sha256: row for row in read_proposals(dataset)}
        self._before: dict[str, list[_Before]] = {}
        drawn = {box.label for record in records.values() for box in record.boxes or ()}
        drawn |= {box.label for row in self._proposals.values() for box in row.boxes}
        classes = {record.label for record in records.values()}
        self.labels = tuple(dict.fromkeys((LESION, *sorted(drawn), *sorted(classes))))

    def read_again(self) -> None:
        """Take the drawings that another process has written."""
        self._rows = read_annotations(self._dataset)

    def proposed(self, sha256: str) -> float | None:
        """Return the confidence of what a model proposes, 0 for no box; None: no proposal."""
        proposal = self._proposals.get(sha256)
        return confidence(proposal) if proposal else None

    def shown(self, sha256: str) -> dict[str, Any]:
        """Return an image's size, its accepted boxes or else those proposed, and which they are."""
        record, proposal = self._records[sha256], self._proposals.get(sha256)
        boxes = record.boxes if record.boxes is not None else proposal.boxes if proposal else ()
        state = "accepted" if record.boxes is not None else "proposed" if proposal else "none"
        return {
            "size": [record.width, record.height],
            "boxes": [[box.x1, box.y1, box.x2, box.y2, box.label] for box in boxes],
            "boxes_are": state,
        }

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the dataset for a decision. Raises UserError while a build is at work."""
        with only_writer(self._dataset, "review or build", wait_s=_WAIT_S):
            yield

    def accept(self, sha256: str, boxes: Sequence[Box], by: str) -> None:
        """Accept these boxes, none of which means no lesion.

        Raises UserError for a label that is not known and for a box without area inside the image,
        with nothing written. Only for who holds the dataset, as all that follow.
        """
        record, when = self._records[sha256], now()
        drawn = tuple(
            dataclasses.replace(box, drawn_by=by, drawn_at=when, score=None)
            for box in self._checked(record, boxes)
        )
        row = Annotation(sha256, by, when, drawn)
        self._store(annotated(self._rows, [row], self._records.values()), record)

    def reject(self, sha256: str) -> None:
        """Leave an image without boxes, as one that nobody looked at; the answer is logged."""
        self._store(self._rows, dataclasses.replace(self._records[sha256], boxes=None))

    def undo(self, sha256: str) -> None:
        """Give an image the boxes that it had before it was decided last."""
        before = self._before[sha256].pop()
        left = [row for row in self._rows if row.sha256 != sha256]
        self._store([*left, *before.rows], before.record)
        self._before[sha256].pop()  # what this undoing noted

    def check_undo(self, sha256: str) -> None:
        """Raise UserError for an image that was decided before this process began."""
        if not self._before.get(sha256):
            raise UserError(
                "these boxes were already decided before this page was opened; reload the page "
                "and answer again."
            )

    def _checked(self, record: Record, boxes: Sequence[Box]) -> tuple[Box, ...]:
        if strange := sorted({box.label for box in boxes} - set(self.labels)):
            raise UserError(
                f"there is no label {strange[0]!r}; choose one of {', '.join(self.labels)}."
            )
        raw = [RawBox(box.x1, box.y1, box.x2, box.y2, box.label) for box in boxes]
        inside = boxed((record.width, record.height), raw).boxes
        if len(inside) < len(raw):
            raise UserError("a box is empty or outside the image; draw it again or remove it.")
        return inside

    def _store(self, rows: list[Annotation], record: Record) -> None:
        sha256 = record.sha256
        before = tuple(row for row in self._rows if row.sha256 == sha256)
        self._before.setdefault(sha256, []).append(_Before(self._records[sha256], before))
        records = self._records | {sha256: record}
        renewed = store_drawings(self._dataset, rows, list(records.values()))
        self._rows = rows
        self._records.update((record.sha256, record) for record in renewed)


def unseen(dataset: Path) -> int:
    """Return how many images nobody has reviewed for boxes. Raises UserError."""
    return sum(record.boxes is None for record in read_manifest(dataset))
