"""Regions of a photo that is stored at full size and at halves of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.scan.pixels import resized_to

# H, W = rows and columns, 3 = red, green, blue

_ROWS = 256
"""Of the answer, that are shrunk at once."""


class Levels(Protocol):
    """A photo at full size (level 0) and at halves of it, upright."""

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """One for each level."""
        ...

    def size(self, level: int = 0) -> tuple[int, int]:
        """Return (width, height) of a level."""
        ...

    def to_full(self, level: int) -> tuple[float, float, float]:
        """Return (factor, dx, dy): full = factor * level + d."""
        ...

    def read(self, level: int, left: int, top: int, width: int, height: int) -> NDArray[np.uint8]:
        """Return height x width x 3 RGB uint8 of a level."""
        ...


@dataclass(frozen=True)
class LevelledPhoto:
    """A `ReadRegion` of a levelled photo; beside its answer it holds some rows of the photo."""

    levels: Levels

    def __call__(self, x1: int, y1: int, x2: int, y2: int, scale: float) -> NDArray[np.uint8]:
        """Return pixels_HW3 of a region."""
        level = 0
        while level + 1 < len(self.levels.sizes) and scale <= 1 / (2 << level):
            level += 1
        factor, dx, dy = self.levels.to_full(level)
        width, height = self.levels.size(level)
        left, top = round((x1 - dx) / factor), round((y1 - dy) / factor)
        left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
        right, bottom = round((x2 - dx) / factor), round((y2 - dy) / factor)
        across = min(max(right, left + 1), width) - left
        down = min(max(bottom, top + 1), height) - top
        rest = scale * factor
        if rest >= 1:
            return self.levels.read(level, left, top, across, down)
        wide, high = max(1, round(across * rest)), max(1, round(down * rest))
        pixels_HW3 = np.empty((high, wide, 3), np.uint8)
        for first in range(0, high, _ROWS):
            last = min(first + _ROWS, high)
            begin, end = (round(row * down / high) for row in (first, last))
            rows_HW3 = self.levels.read(level, left, top + begin, across, end - begin)
            pixels_HW3[first:last] = resized_to(rows_HW3, wide, last - first)
        return pixels_HW3
