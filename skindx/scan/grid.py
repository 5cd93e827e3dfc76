"""The tiles of a photo at one or several scales."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.gates import skin_mask
from skindx.models.tile_detector import CELL
from skindx.scan.photo.pixels import PixelStore
from skindx.scan.settings import ScanSettings
from skindx.scan.tiles import Patches

_LEFT = 0.8
"""Of the size up to which a lesion is whole in one tile of the next finer scale."""
_SKIN_STEP = 4
"""Pixels between those that are asked for their colour."""


@dataclass(frozen=True)
class Grid:
    """The tiles of one scale, on the cells of the map of scores; pixels are of that scale."""

    level: int
    width: int
    height: int
    tile: int
    overlap: int
    least: float = 0.0
    """Pixels of the whole photo: lesions with a shorter longer side are left to the next finer
    scale, which has them whole in one tile and with more pixels."""

    @cached_property
    def patches(self) -> Patches:
        """The tiles as patches of the map of scores: rows, columns."""
        cells = (-(-self.height // CELL), -(-self.width // CELL))
        return Patches(cells, (self.tile // CELL,) * 2, (-(-self.overlap // CELL),) * 2)

    def place(self, number: int) -> tuple[int, int]:
        """Return (left, top) of a tile; the last of a row may stand out by less than a cell."""
        down, across = self.patches[number]
        return across.start * CELL, down.start * CELL

    def read(self, store: PixelStore, number: int) -> NDArray[np.uint8]:
        """Return a tile, always tile x tile x 3."""
        left, top = self.place(number)
        return store.read(self.level, left, top, self.tile, self.tile)

    def inner_sides(self, number: int) -> tuple[bool, bool, bool, bool]:
        """Tell which sides (left, top, right, bottom) of a tile lie inside the photo."""
        left, top = self.place(number)
        right, bottom = left + self.tile < self.width, top + self.tile < self.height
        return left > 0, top > 0, right, bottom


def grids(store: PixelStore, tile: int, settings: ScanSettings) -> list[Grid]:
    """Return the grids of all scales, the finest first."""
    overlap = round(settings.overlap * tile)
    found: list[Grid] = []
    levels = range(0, len(store.sizes), settings.step.bit_length() - 1)[: settings.scales]
    for level in levels:
        width, height = store.size(level)
        least = _LEFT * overlap * 2**level / settings.step if level else 0.0
        found.append(Grid(level, width, height, tile, overlap, least))
        if max(width, height) <= tile:
            break
    return found


def shows_skin(tile_SS3: NDArray[np.uint8], least: float) -> bool:
    """Tell whether enough of a tile has a colour of skin."""
    few = np.ascontiguousarray(tile_SS3[::_SKIN_STEP, ::_SKIN_STEP])
    return bool(skin_mask(few).mean() >= max(least, 1e-9))
