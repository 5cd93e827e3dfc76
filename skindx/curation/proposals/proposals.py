"""Boxes that a model proposes for images without annotations; a person corrects them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import only_writer, sha256_file
from skindx.core.errors import UserError
from skindx.curation.proposals.activation import ActivationBoxes
from skindx.data.box import Box
from skindx.data.boxes.annotations import Annotation, now, read_proposals, write_proposals
from skindx.data.manifest import read_manifest
from skindx.data.stored_image import read_image
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.bundle_index import INDEX
from skindx.models.detector import Detector

_FLOOR = 0.05
"""A person throws a wrong box away faster than he draws a missing one."""
_BATCH = 16

Progress = Callable[[int, int], None]


class Proposer(Protocol):
    """Finds boxes with a score in decoded images (H x W x 3 RGB uint8)."""

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[tuple[Box, ...]]: ...


@dataclass(frozen=True, slots=True)
class Proposed:
    """Result of `propose`."""

    model: str
    """The annotator in proposals.parquet: bundle, part, and the start of the bundle's hash."""
    images: int
    boxes: int
    empty: int
    skipped: int
    """Images that a person has annotated."""
    note: str
    """Why it is not the bundle's detector that proposes; empty when it is."""


def propose(
    dataset: Path, bundle: Path, *, everywhere: bool = False, progress: Progress | None = None
) -> Proposed:
    """Write DATASET/proposals.parquet: the bundle's boxes for images without annotations.

    The bundle's detector proposes, or without one the class activation of its convolutional member
    of the largest input. Manifest and annotations stay as they are. `everywhere` also takes
    images that have boxes, to compare with `skindx boxes agree`. Proposals of other models stay
    for images that this run does not look at. Raises UserError.
    """
    opened = open_bundle(bundle)
    proposer, part, note = _proposer(opened)
    model = f"{opened.spec.name}/{part}@{sha256_file(bundle / INDEX)[:12]}"
    records = read_manifest(dataset)
    wanted = [record for record in records if everywhere or record.boxes is None]
    if not wanted:
        raise UserError(
            f"a person has annotated every image of {dataset}; to compare a model with people "
            f"add --everywhere."
        )
    when, rows, done = now(), [], 0
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        images = [read_image(dataset, record) for record in batch]
        for record, boxes in zip(batch, proposer.detect(images), strict=True):
            signed = tuple(replace(box, drawn_by=model, drawn_at=when) for box in boxes)
            rows.append(Annotation(record.sha256, model, when, signed))
        done += len(batch)
        if progress:
            progress(done, len(wanted))
    ours = {row.sha256 for row in rows}
    with only_writer(dataset):
        others = [row for row in read_proposals(dataset) if row.sha256 not in ours]
        write_proposals(dataset, [*others, *rows])
    return Proposed(
        model,
        len(rows),
        sum(len(row.boxes) for row in rows),
        sum(not row.boxes for row in rows),
        len(records) - len(wanted),
        note,
    )


@dataclass(frozen=True)
class _DetectorBoxes:
    detector: Detector

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[tuple[Box, ...]]:
        return self.detector.detect(images, min(_FLOOR, self.detector.spec.confidence))


def _proposer(bundle: Bundle) -> tuple[Proposer, str, str]:
    """Return who proposes, the name of the part of the bundle, and why it is no detector."""
    note = "the bundle has no detector"
    try:
        detector = bundle.detector()
    except UserError as error:
        detector, note = None, str(error)
    if detector:
        return _DetectorBoxes(detector), "detector", ""
    # The member that sees images largest has the finest map.
    members = sorted(bundle.ensemble().members, key=lambda member: -member.preprocess.size)
    for member in members:
        boxes = ActivationBoxes(member)
        if boxes.sees_places():
            return boxes, member.name, note
    raise UserError(
        f"{bundle.path} has neither a usable detector ({note}) nor a convolutional member whose "
        f"class activation could be drawn; train one of them."
    )
