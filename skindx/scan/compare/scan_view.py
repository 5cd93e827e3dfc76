"""Data of a scan's folder that a comparison needs: reduced photos with their lesions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.atomic_files import read_parquet
from skindx.core.errors import UserError
from skindx.scan.outputs.scan_files import PARQUET
from skindx.scan.outputs.scan_result import PhotoSummary, Summary, read_summary
from skindx.scan.pixel_store import Floats, Pixels

# L = lesions of a photo, H, W = rows and columns of the shrunk photo

_COLUMNS = (
    "rank", "photo_number", "x1", "y1", "x2", "y2", "detector_score", "urgent_risk", "urgent",
    "most_likely", "possible", "colour_l", "colour_a", "colour_b", "crop",
)  # fmt: skip


@dataclass(frozen=True)
class ScanView:
    """One photo of a scan; places are in pixels of `pixels_HW3`."""

    photo: PhotoSummary
    pixels_HW3: Pixels
    boxes_L4: Floats
    """x1, y1, x2, y2."""
    colours_L3: Floats
    """CIELAB, lesion minus skin."""
    rows: tuple[dict[str, Any], ...]
    """The lesions as lesions.parquet has them, in the same order."""

    @property
    def centres(self) -> Floats:
        return (self.boxes_L4[:, :2] + self.boxes_L4[:, 2:]) / 2

    @property
    def sizes(self) -> Floats:
        """Return the geometric means of the boxes' sides."""
        sides_L2 = self.boxes_L4[:, 2:] - self.boxes_L4[:, :2]
        return np.asarray(np.sqrt(sides_L2.prod(axis=1)))

    @property
    def size_wh(self) -> tuple[int, int]:
        height, width, _ = self.pixels_HW3.shape
        return int(width), int(height)

    @property
    def mm_per_pixel(self) -> float | None:
        """Return the scale of the shrunk photo."""
        if self.photo.mm_per_pixel is None:
            return None
        return self.photo.mm_per_pixel * self.photo.width / self.size_wh[0]


@dataclass(frozen=True)
class StoredScan:
    """A scan's folder, read."""

    folder: Path
    summary: Summary
    views: tuple[ScanView, ...]


def read_scan(folder: Path) -> StoredScan:
    """Read a folder that `skindx scan run` wrote. Raises UserError for anything else."""
    summary = read_summary(folder)
    try:
        rows = read_parquet(folder / PARQUET, _COLUMNS).to_pylist()
        for row in rows:  # older versions wrote 0 where the bundle has no urgent class
            row["urgent_risk"] = row["urgent_risk"] or None
        views = tuple(
            _view(folder, photo, [row for row in rows if row["photo_number"] == number])
            for number, photo in enumerate(summary.photos, 1)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the scan in {folder} is not complete ({type(error).__name__}: {error}); scan the "
            f"photos again."
        ) from None
    return StoredScan(folder, summary, views)


def _view(folder: Path, photo: PhotoSummary, rows: list[dict[str, Any]]) -> ScanView:
    from skindx.imaging.decode import decode

    path = (folder / photo.overview).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{photo.overview} leads out of the folder")
    pixels_HW3 = decode(path.read_bytes())
    boxes_L4 = np.array([[row[name] for name in ("x1", "y1", "x2", "y2")] for row in rows], float)
    colours_L3 = np.array([[row[f"colour_{axis}"] for axis in "lab"] for row in rows], float)
    shrunk = pixels_HW3.shape[1] / photo.width
    return ScanView(
        photo, pixels_HW3, boxes_L4.reshape(-1, 4) * shrunk, colours_L3.reshape(-1, 3), tuple(rows)
    )
