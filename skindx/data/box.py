"""A box in an image, and what a file of any format says of one image."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from skindx.data.typed_rows import Float32

if TYPE_CHECKING:  # `skindx --help` reads the formats of boxes, and no NumPy
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RawBox:
    """A box as a file has it: it may be empty, or stand out of its image."""

    x1: Float32
    y1: Float32
    x2: Float32
    y2: Float32
    label: str = "lesion"
    drawn_by: str = ""
    score: Float32 | None = None
    drawn_at: str = ""


@dataclass(frozen=True, slots=True)
class Box(RawBox):
    """One rectangle in pixels of the stored image, origin top left, x2/y2 exclusive.

    `label` is a class name or "lesion"; `drawn_by` says who drew it (a person, a file, a model)
    and `drawn_at` when (UTC, ISO 8601). `score` in 0..1 is a detector's confidence, None for a box
    that was drawn.
    """

    def __post_init__(self) -> None:
        """Refuse an empty or reversed rectangle."""
        if not (self.x1 < self.x2 and self.y1 < self.y2):
            raise ValueError(f"box needs x1 < x2 and y1 < y2, got {self}")


@dataclass(frozen=True, slots=True)
class BoxedImage:
    """The boxes that a file has for one image; () means that it was reviewed and has none.

    An image that was not reviewed is in no such file: every reader leaves it out.
    """

    width: int
    height: int
    boxes: tuple[Box, ...]
    sha256: str = ""
    """SHA-256 of the stored bytes, where the file knows it."""
    refused: int = field(default=0, compare=False)
    """Boxes of the file that are empty or stand out of the image by more than a pixel, and other
    shapes than boxes."""
    unread: int = field(default=0, compare=False)
    """Rows of the image that give no box although something was drawn: its boxes may not be all."""


UNKNOWN_SIZE = (0, 0)
"""Size of an image without boxes, in a format that gives the size with the first box."""


SLACK = 1.0
"""Pixels: formats count from 0 or from 1, and round."""


def boxed(
    size: tuple[int, int],
    drawn: Sequence[RawBox],
    sha256: str = "",
    unread: int = 0,
    refused: int = 0,
) -> BoxedImage:
    """Cut boxes to their image of `size` (width, height); what is empty then is left out.

    `refused` shapes that are no boxes count with those that do not fit.
    """
    width, height = size
    boxes = []
    for raw in drawn:
        x1, y1 = max(raw.x1, 0.0), max(raw.y1, 0.0)
        x2, y2 = min(raw.x2, float(width)), min(raw.y2, float(height))
        whole = x1 < x2 and y1 < y2
        out = max(-raw.x1, -raw.y1, raw.x2 - width, raw.y2 - height)
        refused += not (whole and out <= SLACK)
        if whole:
            boxes.append(Box(x1, y1, x2, y2, raw.label, raw.drawn_by, raw.score, raw.drawn_at))
    return BoxedImage(width, height, tuple(boxes), sha256, refused, unread)


def recut(image: BoxedImage, size: tuple[int, int]) -> BoxedImage:
    """Cut the boxes of an image once more, to another size (width, height)."""
    return boxed(size, image.boxes, image.sha256, image.unread, image.refused)


def base_name(file_name: str) -> str:
    """Return the last part of a path as tools on any system write it."""
    return PurePosixPath(file_name.replace("\\", "/")).name


def sha256_in(text: object) -> str:
    """Return `text` if it is a SHA-256, as our exports name images, else ""."""
    stem = PurePosixPath(str(text)).stem
    return stem if re.fullmatch(r"[0-9a-f]{64}", stem) else ""


def match(
    first: Sequence[Box], second: Sequence[Box], threshold: float
) -> list[tuple[int, int, float]]:
    """Return (i, j, IoU) of the pairs with the greatest sum of IoU, each of `threshold` or more.

    An optimal assignment (Kuhn 1955, the Hungarian method): a box has one partner at most.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    iou_AB = iou(first, second)
    usable_AB = np.where(iou_AB >= threshold, iou_AB, 0.0)
    rows, columns = linear_sum_assignment(usable_AB, maximize=True)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [(i, j, float(iou_AB[i, j])) for i, j in pairs if iou_AB[i, j] >= threshold]


def iou(first: Sequence[Box], second: Sequence[Box]) -> "Floats":
    """Return the intersection over union of every pair of boxes, A x B."""
    import numpy as np

    a_A4 = np.array([(b.x1, b.y1, b.x2, b.y2) for b in first], dtype=float).reshape(-1, 1, 4)
    b_B4 = np.array([(b.x1, b.y1, b.x2, b.y2) for b in second], dtype=float).reshape(1, -1, 4)
    sides = np.minimum(a_A4[..., 2:], b_B4[..., 2:]) - np.maximum(a_A4[..., :2], b_B4[..., :2])
    shared_AB: Floats = np.clip(sides, 0, None).prod(axis=-1)
    union_AB = _area(a_A4) + _area(b_B4) - shared_AB
    return shared_AB / union_AB


def _area(boxes: "Floats") -> "Floats":
    area: Floats = (boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)
    return area
