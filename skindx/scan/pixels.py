"""Pixels of a photo that may be larger than memory: a region is read at a scale."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# H, W = rows and columns, 3 = red, green, blue


class ReadRegion(Protocol):
    """Reads the region from x1, y1 up to x2, y2 of the upright photo.

    The corners are whole pixels inside the photo and `scale` is in (0, 1]; the answer has about
    (y2 - y1) * scale rows, at least one.
    """

    def __call__(self, x1: int, y1: int, x2: int, y2: int, scale: float) -> NDArray[np.uint8]:
        """Return pixels_HW3, uint8 RGB."""
        ...


@dataclass(frozen=True)
class ArrayPhoto:
    """A photo that is in memory as a whole; an instance is a `ReadRegion`."""

    pixels_HW3: NDArray[np.uint8]

    def __call__(self, x1: int, y1: int, x2: int, y2: int, scale: float) -> NDArray[np.uint8]:
        """Return pixels_HW3 of a region."""
        region_HW3 = self.pixels_HW3[y1:y2, x1:x2]
        return region_HW3 if scale >= 1 else resized(region_HW3, scale)


def resized(pixels_HWC: NDArray[np.uint8], scale: float) -> NDArray[np.uint8]:
    """Return an image shrunk by a factor in (0, 1], each new pixel the mean of its old ones."""
    height, width = pixels_HWC.shape[:2]
    return resized_to(pixels_HWC, max(1, round(width * scale)), max(1, round(height * scale)))


def resized_to(pixels_HWC: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Return an image shrunk to a width and a height."""
    import cv2

    small_HWC: NDArray[np.uint8] = cv2.resize(
        np.ascontiguousarray(pixels_HWC), (width, height), interpolation=cv2.INTER_AREA
    )
    return small_HWC


def overview(read: ReadRegion, width: int, height: int, longest_side: int) -> NDArray[np.uint8]:
    """Return the whole photo with at most `longest_side` pixels along its longer side."""
    return read(0, 0, width, height, min(1.0, longest_side / max(width, height)))
