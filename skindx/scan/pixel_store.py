"""The pixel store: a photo as raw RGB rows at full size and at halves of it, in plain files.

A JPEG gives its rows only from top to bottom, and decoding it again for each worker and scale
would cost more than the networks. So it is decoded once; workers then read any rectangle with as
many bytes of memory as the rectangle has. Pixels are stored as the file has them; EXIF's
orientation is applied to what is read.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.private_files import open_private, write_private_json
from skindx.core.untrusted import read_json
from skindx.imaging.decode import turned

# H, W = rows and columns, 3 = red, green, blue

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class ReadRegion(Protocol):
    """Reads the region from x1, y1 up to x2, y2 of the upright photo.

    The corners are whole pixels inside the photo and `scale` is in (0, 1]; the answer has about
    (y2 - y1) * scale rows, at least one.
    """

    def __call__(self, x1: int, y1: int, x2: int, y2: int, scale: float) -> Pixels:
        """Return pixels_HW3, uint8 RGB."""
        ...


def resized(pixels_HWC: Pixels, scale: float) -> Pixels:
    """Return an image shrunk by a factor in (0, 1], each new pixel the mean of its old ones."""
    height, width = pixels_HWC.shape[:2]
    return resized_to(pixels_HWC, max(1, round(width * scale)), max(1, round(height * scale)))


def resized_to(pixels_HWC: Pixels, width: int, height: int) -> Pixels:
    import cv2

    small_HWC: Pixels = cv2.resize(
        np.ascontiguousarray(pixels_HWC), (width, height), interpolation=cv2.INTER_AREA
    )
    return small_HWC


def overview(read: ReadRegion, width: int, height: int, longest_side: int) -> Pixels:
    """Return the whole photo with at most `longest_side` pixels along its longer side."""
    return read(0, 0, width, height, min(1.0, longest_side / max(width, height)))


INDEX = "pixels.json"
GREY = 114
"""Grey level beyond the photo's edge, as in training of detectors. Importing their module would
import torch, and all that a forking process has imported counts as memory of each decoder."""
SMALLEST = 64
"""Pixels of the longer side: halving ends there."""

_DOWN, _ACROSS, _TRANSPOSED = (3, 4, 6, 7), (2, 3, 7, 8), (5, 6, 7, 8)
"""EXIF orientations that reverse the stored rows, reverse the stored columns, exchange both."""

# R = rows, H, W = height and width


def level_sizes(width: int, height: int) -> list[tuple[int, int]]:
    """Return (width, height) of each level; a level is the one before halved, rounded down."""
    sizes = [(width, height)]
    while max(sizes[-1]) > SMALLEST and min(sizes[-1]) >= 2:
        sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
    return sizes


class PixelWriter:
    """Takes rows from top to bottom and writes all levels; holds a strip of each in memory."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        """Create the files in an empty folder; only this user may read them."""
        self.folder, self.sizes = folder, level_sizes(width, height)
        self._files: list[BinaryIO] = [
            os.fdopen(open_private(_file(folder, level), os.O_WRONLY), "wb")
            for level in range(len(self.sizes))
        ]
        self._left: list[Pixels] = [np.empty((0, width, 3), np.uint8) for width, _ in self.sizes]

    def write(self, rows_RW3: Pixels) -> None:
        """Append rows of the full size."""
        import cv2

        for level, file in enumerate(self._files):
            file.write(np.ascontiguousarray(rows_RW3).data)
            if level + 1 == len(self.sizes):
                return
            known_RW3 = np.concatenate([self._left[level], rows_RW3])
            width, rows = self.sizes[level + 1][0], len(known_RW3) // 2
            self._left[level] = known_RW3[2 * rows :].copy()
            if not rows:
                return
            even: Any = known_RW3[: 2 * rows, : 2 * width]
            rows_RW3 = cv2.resize(even, (width, rows), interpolation=cv2.INTER_AREA)

    def close(self, facts: dict[str, Any], orientation: int = 1) -> None:
        """Finish the store; `facts` are kept beside it."""
        for file in self._files:
            file.close()
        width, height = self.sizes[0]
        index = {"width": width, "height": height, "orientation": orientation, **facts}
        write_private_json(self.folder / INDEX, index)

    def abandon(self) -> None:
        """Close the files of a store that will not be finished."""
        for file in self._files:
            file.close()


@dataclass(frozen=True)
class PixelStore:
    """A finished store; safe to share between threads and processes."""

    folder: Path
    sizes: Sequence[tuple[int, int]]
    """(width, height) of each level as stored."""
    orientation: int
    facts: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Self:
        facts = read_json(folder / INDEX)
        width, height = int(facts["width"]), int(facts["height"])
        return cls(folder, level_sizes(width, height), int(facts["orientation"]), facts)

    def size(self, level: int = 0) -> tuple[int, int]:
        """Return (width, height) of a level, upright."""
        width, height = self.sizes[level]
        return (height, width) if self.orientation in _TRANSPOSED else (width, height)

    def to_full(self, level: int) -> tuple[float, float, float]:
        """Return (factor, dx, dy): full = factor * level + d, for upright x and y.

        Halving drops the last odd row or column, which is the first where it is turned round.
        """
        factor = 1 << level
        lost_x, lost_y = (
            full - factor * small
            for full, small in zip(self.sizes[0], self.sizes[level], strict=True)
        )
        dx = lost_x if self.orientation in _ACROSS else 0
        dy = lost_y if self.orientation in _DOWN else 0
        return (factor, dy, dx) if self.orientation in _TRANSPOSED else (factor, dx, dy)

    def read(self, level: int, left: int, top: int, width: int, height: int) -> Pixels:
        """Return height x width x 3 RGB uint8 of a level, upright; grey beyond the photo."""
        full_width, full_height = self.size(level)
        pixels_HW3 = np.full((height, width, 3), GREY, np.uint8)
        x1, y1 = max(left, 0), max(top, 0)
        x2, y2 = min(left + width, full_width), min(top + height, full_height)
        if x1 < x2 and y1 < y2:
            pixels_HW3[y1 - top : y2 - top, x1 - left : x2 - left] = self._inside(
                level, (x1, y1, x2, y2)
            )
        return pixels_HW3

    def _inside(self, level: int, upright: tuple[int, int, int, int]) -> Pixels:
        x1, y1, x2, y2 = upright
        if self.orientation in _TRANSPOSED:
            x1, y1, x2, y2 = y1, x1, y2, x2
        width, height = self.sizes[level]
        if self.orientation in _ACROSS:
            x1, x2 = width - x2, width - x1
        if self.orientation in _DOWN:
            y1, y2 = height - y2, height - y1
        return turned(self._rows(level, (x1, y1, x2, y2)), self.orientation)

    def _rows(self, level: int, stored: tuple[int, int, int, int]) -> Pixels:
        x1, y1, x2, y2 = stored
        width = self.sizes[level][0]
        rows_RW3 = np.empty((y2 - y1, x2 - x1, 3), np.uint8)
        descriptor = os.open(_file(self.folder, level), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for row, out_W3 in enumerate(rows_RW3, start=y1):
                read_bytes = os.preadv(descriptor, [out_W3.data], 3 * (row * width + x1))
                if read_bytes != out_W3.nbytes:
                    raise OSError(f"{_file(self.folder, level)} is cut short")
        finally:
            os.close(descriptor)
        return rows_RW3


def _file(folder: Path, level: int) -> Path:
    return folder / f"{level}.rgb"


# H, W = rows and columns, 3 = red, green, blue

_ROWS = 256
"""Number of output rows that are shrunk at once."""


class Levels(Protocol):
    """A photo at full size (level 0) and at halves of it, upright."""

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """Width and height of each level."""
        ...

    def size(self, level: int = 0) -> tuple[int, int]:
        """Return (width, height) of a level."""
        ...

    def to_full(self, level: int) -> tuple[float, float, float]:
        """Return (factor, dx, dy): full = factor * level + d."""
        ...

    def read(self, level: int, left: int, top: int, width: int, height: int) -> Pixels:
        """Return height x width x 3 RGB uint8 of a level."""
        ...


@dataclass(frozen=True)
class LevelledPhoto:
    """A `ReadRegion` of a levelled photo; beside its answer it holds some rows of the photo."""

    levels: Levels

    def __call__(self, x1: int, y1: int, x2: int, y2: int, scale: float) -> Pixels:
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
