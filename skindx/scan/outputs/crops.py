"""A lesion cut out of its photo, with skin around it."""

import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.scan.pixels import ReadRegion

_MARGIN = 0.4
"""Of the box's longer side, on each side of it."""
_LEAST_PX = 64


def region_around(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    """Return a square around a box, cut to the photo: x1, y1, x2, y2 in whole pixels."""
    side = max(box.x2 - box.x1, box.y2 - box.y1) * (1 + 2 * _MARGIN)
    half = max(side, _LEAST_PX) / 2
    x, y = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
    return (
        max(0, int(np.floor(x - half))),
        max(0, int(np.floor(y - half))),
        min(width, int(np.ceil(x + half))),
        min(height, int(np.ceil(y + half))),
    )


def crop(
    read: ReadRegion, region: tuple[int, int, int, int], longest_side: int
) -> NDArray[np.uint8]:
    """Return pixels_HW3 of a region with at most `longest_side` pixels along its longer side."""
    x1, y1, x2, y2 = region
    return read(x1, y1, x2, y2, min(1.0, longest_side / max(x2 - x1, y2 - y1)))
