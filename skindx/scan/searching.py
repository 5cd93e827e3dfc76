"""All lesions of one photo in one process, without a queue: the detector and the joining."""

import numpy as np
from numpy.typing import NDArray

from skindx.models.tile_detector import BatchDetector
from skindx.scan.finding import find_in_tiles
from skindx.scan.grid import grids
from skindx.scan.join import Found, join
from skindx.scan.photo.pixels import PixelStore
from skindx.scan.settings import ScanSettings

# K = lesions


def search(
    store: PixelStore,
    detector: BatchDetector,
    settings: ScanSettings,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return boxes K x 4 in pixels of the upright photo and their scores, best first."""
    tile = settings.tile or detector.spec.size
    found = [
        find_in_tiles(detector, store, grid, range(len(grid.patches)), settings)
        for grid in grids(store, tile, settings)
    ]
    rows = np.concatenate([one.rows_R8 for one in found])
    boxes_K4, scores_K, _ = join(Found.of(rows), settings.least_side)
    return boxes_K4, scores_K
