"""A photo with dark spots at known places, and a detector that finds dark spots."""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from skindx.models.detector import CELL, DetectorSpec, TileBoxes
from skindx.scan.work.scan_worker import ScanPlan

DARK = 120
"""Brightness below which a pixel is of a spot."""

Spot = tuple[float, float, float]
"""Centre x, y and radius, in pixels."""


def photo_with(spots: list[Spot], width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return H x W x 3 of light skin with dark round spots."""
    rng = np.random.default_rng(seed)
    small = rng.uniform(-8, 8, (height // 40 + 2, width // 40 + 2)).astype(np.float32)
    shade = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    photo = np.full((height, width, 3), (224, 180, 158), np.float32) + shade[..., None]
    photo = np.clip(photo, 0, 255).astype(np.uint8)
    for x, y, radius in spots:
        centre = (round(8 * (x - 0.5)), round(8 * (y - 0.5)))
        cv2.circle(photo, centre, round(8 * radius), (92, 52, 40), -1, cv2.LINE_AA, 3)
    return photo


def save(pixels: NDArray[np.uint8], path: Path) -> Path:
    """Write a PNG."""
    Image.fromarray(pixels).save(path)
    return path


@dataclass(frozen=True)
class SpotDetector:
    """Finds the connected dark pixels of each tile, as a detector that is always right."""

    spec: DetectorSpec = field(default_factory=lambda: DetectorSpec(size=64))

    def detect(
        self,
        tiles_BSS3: NDArray[np.uint8],
        confidence: float | None = None,
    ) -> tuple[list[TileBoxes], NDArray[np.float32]]:
        """Return the boxes of each tile, and the share of dark pixels in each cell."""
        grey = [cv2.cvtColor(tile, cv2.COLOR_RGB2GRAY) for tile in tiles_BSS3]
        brown_BSS = tiles_BSS3[..., 0] > tiles_BSS3[..., 1]  # neither cloth nor grey padding
        dark_BSS = (np.stack(grey) < DARK) & brown_BSS
        batch, side = dark_BSS.shape[:2]
        cells = side // CELL
        maps = dark_BSS.reshape(batch, cells, CELL, cells, CELL).mean(axis=(2, 4))
        return [_boxes(dark_SS) for dark_SS in dark_BSS], maps.astype(np.float32)


def _boxes(dark_SS: NDArray[np.bool_]) -> TileBoxes:
    count, _, stats, _ = cv2.connectedComponentsWithStats(dark_SS.astype(np.uint8))
    rows = [row for row in stats[1:count] if row[4] >= 4]
    boxes = np.array([(x, y, x + w, y + h) for x, y, w, h, _ in rows], np.float32).reshape(-1, 4)
    areas = np.array([row[4] for row in rows], np.float32)
    scores = 0.5 + 0.4 * areas / (areas + 100)
    return TileBoxes(boxes, scores.astype(np.float32), np.zeros(len(rows), np.int64))


@lru_cache(maxsize=1)
def load(plan: ScanPlan, device: str):  # type: ignore[no-untyped-def]
    """Return the bundle's predictor, with a detector that finds spots."""
    from skindx.diagnosis.predictor import Predictor

    miss_rate = plan.settings.miss_rate
    predictor = Predictor.load(plan.bundle, device, expect=plan.digest, miss_rate=miss_rate)
    return predictor, SpotDetector()
