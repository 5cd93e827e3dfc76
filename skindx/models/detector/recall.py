"""How many lesions of each size a detector finds on validation images: it stays with its bundle."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.data.box import Box
from skindx.data.boxes.agreement import match
from skindx.metrics import Interval, proportion_interval

EDGES_PX = (10.0, 20.0, 40.0, 80.0, 160.0)
"""Where bands of sizes begin; a scan leaves out what is smaller than the first."""
OVERLAP = 0.5
"""A lesion is found where a box overlaps it so far (IoU), as in the usual recall."""


class SizeRecall(Settings):
    """Of the lesions of a size, how many were found."""

    least_px: float = Field(ge=0)
    """Geometric mean of the box's sides, from here on and below `most_px`, in pixels of the square
    that the detector sees: a tile of a scan at full size shows lesions with as many."""
    most_px: float | None = Field(None, gt=0)
    """None: any larger size."""
    found: int = Field(ge=0)
    lesions: int = Field(ge=0)

    @property
    def recall(self) -> Interval:
        """Return the share that was found, with its exact 95 % interval; NaN without a lesion."""
        return proportion_interval(self.found / self.lesions if self.lesions else 0, self.lesions)


class DetectorRecall(Settings):
    """What was measured of a detector, at the confidence with which the bundle uses it."""

    format: Literal[1] = 1
    images: int = Field(ge=0)
    confidence: float
    overlap: float = OVERLAP
    bands: tuple[SizeRecall, ...]


@dataclass(frozen=True)
class SizedTruth:
    """The lesions of one image, and what a detector found on it."""

    truth: Sequence[Box]
    found: Sequence[Box]
    px_a_pixel: float
    """Pixels of the detector's square in one of the image."""


def recall_by_size(images: Iterable[SizedTruth], confidence: float) -> DetectorRecall | None:
    """Count found lesions by size; None without any lesion of a size that counts."""
    lesions, hits, count = [0] * len(EDGES_PX), [0] * len(EDGES_PX), 0
    for image in images:
        count += 1
        found = {true for _, true, _ in match(image.found, image.truth, OVERLAP)}
        for number, box in enumerate(image.truth):
            side = image.px_a_pixel * math.sqrt((box.x2 - box.x1) * (box.y2 - box.y1))
            band = sum(side >= edge for edge in EDGES_PX) - 1
            if band >= 0:
                lesions[band] += 1
                hits[band] += number in found
    if not any(lesions):
        return None
    ends = (*EDGES_PX[1:], None)
    return DetectorRecall(
        images=count,
        confidence=confidence,
        bands=tuple(
            SizeRecall(least_px=least, most_px=most, found=hit, lesions=total)
            for least, most, hit, total in zip(EDGES_PX, ends, hits, lesions, strict=True)
        ),
    )
