"""A reviewer's walk through a dataset's images: who is next, what is saved, what is undone."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.annotations import (
    Annotation,
    annotated,
    now,
    read_annotations,
    read_proposals,
    store_drawings,
)
from skindx.data.manifest import Record, read_manifest
from skindx.review.answer_review import held_dataset, held_for

LESION = "lesion"


@dataclasses.dataclass(frozen=True, slots=True)
class _Before:
    """Boxes of an image before they were saved."""

    record: Record
    rows: tuple[Annotation, ...]


class Review:
    """One reviewer's work on a dataset, on disk after every `save` and `undo`.

    Images that were not reviewed come first: those with proposals, least confident first, then
    those without; then images reviewed before. The order is fixed until the review ends.
    """

    def __init__(self, dataset: Path, by: str) -> None:
        """Read a dataset whose only writer the caller is. Raises UserError for an empty one."""
        self.dataset, self.by = dataset, by
        self._records = {record.sha256: record for record in read_manifest(dataset)}
        if not self._records:
            raise UserError(f"{dataset} holds no images; build it with some first.")
        self._rows = read_annotations(dataset)
        self._proposals = {row.sha256: row for row in read_proposals(dataset)}
        self.order = tuple(_ordered(self._records.values(), self._proposals))
        self._place = {sha256: place for place, sha256 in enumerate(self.order)}
        self.labels = _labels(self._records.values(), self._proposals.values())
        self._saved: list[_Before] = []

    @property
    def looked_at(self) -> int:
        """Number of reviewed images."""
        return sum(record.boxes is not None for record in self._records.values())

    @property
    def first(self) -> str:
        """The first image that was not reviewed, or the first of all."""
        waiting = (sha256 for sha256 in self.order if self._records[sha256].boxes is None)
        return next(waiting, self.order[0])

    def record(self, sha256: str) -> Record:
        """Return an image's record. Raises UserError for one that the dataset does not have."""
        if sha256 not in self._records:
            raise UserError("the dataset has no such image; load the page again.")
        return self._records[sha256]

    def place(self, sha256: str) -> int:
        """Return where an image stands in the order, from 0."""
        return self._place[self.record(sha256).sha256]

    def step(self, sha256: str, by: int) -> str:
        """Return the image so many places on; after the last comes the first."""
        return self.order[(self.place(sha256) + by) % len(self.order)]

    def boxes(self, sha256: str) -> tuple[Box, ...]:
        """Return what to begin with: the accepted boxes, else what a model proposes."""
        record, proposal = self.record(sha256), self._proposals.get(sha256)
        if record.boxes is not None:
            return record.boxes
        return proposal.boxes if proposal else ()

    def state(self, sha256: str) -> str:
        """Return where the boxes of `boxes` are from, for the reviewer to read."""
        if self.record(sha256).boxes is not None:
            return "looked at"
        proposal = self._proposals.get(sha256)
        if proposal is None:
            return "not annotated yet, nothing proposed"
        best = max((box.score or 0.0 for box in proposal.boxes), default=None)
        if best is None:
            return "not annotated yet, the model found nothing"
        return f"not annotated yet, proposed with confidence {best:.2f}"

    def save(self, sha256: str, boxes: Sequence[Box]) -> None:
        """Accept the reviewer's boxes; none means that there is no lesion.

        Raises UserError for a label that the dataset does not know, with nothing written.
        """
        record = self.record(sha256)
        if strange := sorted({box.label for box in boxes} - set(self.labels)):
            raise UserError(
                f"the label {strange[0]!r} is not known here; choose one of "
                f"{', '.join(self.labels)}."
            )
        when = now()
        drawn = tuple(
            dataclasses.replace(box, drawn_by=self.by, drawn_at=when, score=None) for box in boxes
        )
        row = Annotation(sha256, self.by, when, drawn)
        before = _Before(record, tuple(row for row in self._rows if row.sha256 == sha256))
        self._store(annotated(self._rows, [row], self._records.values()), self._records.values())
        self._saved.append(before)

    def undo(self) -> str | None:
        """Give the image that was saved last what it had before, and return it; None: none."""
        if not self._saved:
            return None
        before = self._saved[-1]
        sha256 = before.record.sha256
        remaining = [row for row in self._rows if row.sha256 != sha256]
        records = (self._records | {sha256: before.record}).values()
        self._store([*remaining, *before.rows], records)
        self._saved.pop()
        return sha256

    def _store(self, rows: list[Annotation], records: Iterable[Record]) -> None:
        renewed = store_drawings(self.dataset, rows, list(records))
        self._rows, self._records = rows, {record.sha256: record for record in renewed}


@contextmanager
def reviewing(dataset: Path, by: str) -> Iterator[Review]:
    """Hold a dataset for one reviewer. Raises UserError while another reviewer holds it."""
    with held_for(dataset, by) as name:
        yield Review(dataset, name)


def unseen(dataset: Path) -> int:
    """Return how many images were not reviewed. Raises UserError as `reviewing` does."""
    with held_dataset(dataset):
        return sum(record.boxes is None for record in read_manifest(dataset))


def _ordered(records: Iterable[Record], proposed: Iterable[str]) -> list[str]:
    # Proposals are stored least confident first.
    rank = {sha256: place for place, sha256 in enumerate(proposed)}
    last = len(rank)
    return [
        record.sha256
        for record in sorted(
            records,
            key=lambda record: (
                record.boxes is not None,
                rank.get(record.sha256, last),
                record.sha256,
            ),
        )
    ]


def _labels(records: Iterable[Record], proposals: Iterable[Annotation]) -> tuple[str, ...]:
    drawn, classes = set[str](), set[str]()
    for record in records:
        classes.add(record.label)
        drawn.update(box.label for box in record.boxes or ())
    drawn.update(box.label for row in proposals for box in row.boxes)
    return tuple(dict.fromkeys((LESION, *sorted(drawn), *sorted(classes))))
