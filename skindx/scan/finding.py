"""The detector over a batch of tiles: rows in pixels of the photo, and maps of scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.models.tile_detector import BatchDetector, TileBoxes
from skindx.scan.grid import Grid, shows_skin
from skindx.scan.photo.pixels import PixelStore
from skindx.scan.settings import ScanSettings

EDGE = 3
"""Pixels: a box that ends so near to its tile's side may go on beyond it."""
TILES_A_LEVEL = 1 << 32
"""A tile as one number: its level times this, plus its number."""

# T = tiles, R = boxes of all tiles, G = cells of a tile's side


@dataclass(frozen=True)
class TilesAnswer:
    """Result of a batch of tiles."""

    rows_R8: NDArray[np.float64]
    """x1, y1, x2, y2, score, label, tile, part, as `join.Found.of` takes them."""
    skipped: int
    """Tiles without skin."""
    maps: dict[int, NDArray[np.float32]]
    """Tile number -> scores G x G, for tiles with skin."""


def find_in_tiles(
    detector: BatchDetector,
    store: PixelStore,
    grid: Grid,
    numbers: Sequence[int],
    settings: ScanSettings,
) -> TilesAnswer:
    """Read tiles of one scale, leave out those without skin, and run the detector on the rest."""
    rows: list[NDArray[np.float64]] = [np.empty((0, 8))]
    maps: dict[int, NDArray[np.float32]] = {}
    skipped = 0
    for first in range(0, len(numbers), settings.batch):
        tiles = {
            number: tile_SS3
            for number in numbers[first : first + settings.batch]
            if shows_skin(tile_SS3 := grid.read(store, number), settings.least_skin)
        }
        skipped += len(numbers[first : first + settings.batch]) - len(tiles)
        if not tiles:
            continue
        found, maps_TGG = detector.detect(np.stack(list(tiles.values())), settings.confidence)
        maps.update(zip(tiles, maps_TGG, strict=True))
        for number, boxes in zip(tiles, found, strict=True):
            rows.append(_rows(store, grid, number, boxes))
    return TilesAnswer(np.concatenate(rows), skipped, maps)


def _rows(store: PixelStore, grid: Grid, number: int, found: TileBoxes) -> NDArray[np.float64]:
    boxes_K4 = found.boxes_K4.astype(np.float64)
    ends_K4 = np.concatenate([boxes_K4[:, :2] <= EDGE, boxes_K4[:, 2:] >= grid.tile - EDGE], axis=1)
    cut_K4 = ends_K4 & np.array(grid.inner_sides(number))
    parts_K = cut_K4.any(axis=1)
    # Of a thin slice at a side the neighbour sees more, whatever it is of.
    depths_K2 = boxes_K4[:, 2:] - boxes_K4[:, :2]
    thin_K = (cut_K4 & (np.tile(depths_K2, 2) <= 2 * EDGE)).any(axis=1) & (grid.overlap > 2 * EDGE)
    (left, top), (factor, dx, dy) = grid.place(number), store.to_full(grid.level)
    full_K4 = factor * (boxes_K4 + np.array([left, top] * 2)) + np.array([dx, dy] * 2)
    width, height = store.size()
    full_K4 = full_K4.clip(0, [width, height, width, height])
    sides_K2 = full_K4[:, 2:] - full_K4[:, :2]
    kept_K = (sides_K2.max(axis=1) >= grid.least) & (sides_K2.min(axis=1) > 0) & ~thin_K
    tile_K = np.full(len(boxes_K4), float(grid.level * TILES_A_LEVEL + number))
    columns = (found.scores_K, found.labels_K, tile_K, parts_K)
    rows_K8: NDArray[np.float64] = np.concatenate(
        [full_K4[kept_K], np.stack(columns, axis=1)[kept_K]], axis=1
    )
    return rows_K8
