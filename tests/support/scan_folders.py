"""Folders of two scans of one view, as `skindx scan run` writes them."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from found_lesions import lesion
from painted_bodies import BANDS, CLASSES, PHOTOS, SOURCE, WHEN
from seen_bodies import Body, paint_body, seen_again
from whole_photo import ArrayPhoto

from skindx.scan.outputs.scan_files import write_scan
from skindx.scan.outputs.scan_result import ScanResult
from skindx.scan.scanned_lesions import ScannedPhoto

SIZE = (480, 360)


def visits_of(folder: Path) -> tuple[Path, Path]:
    """Return two scans of one view; one lesion has grown meanwhile."""
    body = paint_body(np.random.default_rng(1), 14, SIZE)
    again = seen_again(np.random.default_rng(3), body, 5, 1.03)
    inside = np.flatnonzero(body.inside() & again.inside())
    sizes = again.sizes_N.copy()
    sizes[inside[np.argmax(body.sizes_N[inside])]] *= 1.9
    return write(folder / "1", body), write(folder / "2", replace(again, sizes_N=sizes), 90)


def small_visit(folder: Path) -> Path:
    """Write a scan of few lesions on a small photo."""
    return write(folder, paint_body(np.random.default_rng(1), 5, (160, 120)))


def write(folder: Path, body: Body, days: int = 0) -> Path:
    """Write a scan in which every lesion of a body was found."""
    found = []
    for number in np.flatnonzero(body.inside()):
        x1, y1, x2, y2 = body.boxes[number].tolist()
        colour = tuple(body.colours_N3[number].tolist())
        found.append(
            lesion((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, colour=colour, possible=("nevus",))
        )
    height, width = body.pixels_HW3.shape[:2]
    photo = ScannedPhoto("photo 1", "ab" * 32, width, height, 9, 1, 0, tuple(found))
    result = ScanResult((photo,), CLASSES, SOURCE, WHEN + timedelta(days=days), BANDS, PHOTOS)
    write_scan(folder, result, [ArrayPhoto(body.pixels_HW3)])
    return folder
