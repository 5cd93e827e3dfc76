"""A painted body as a scan's folder would give it."""

from typing import Any

import numpy as np

from skindx.scan.compare.scan_view import ScanView
from skindx.scan.outputs.scan_result import PhotoSummary
from skindx_bench.scan_compare.bodies import Body


def view_of(
    rng: np.random.Generator, body: Body, jitter: float, name: str = "back.jpg"
) -> ScanView:
    """Return the photo with the outlines of a detector that finds every lesion in it.

    Edges are off by `jitter` of a lesion's size, as a standard deviation; `rank` of each row is
    the number of its lesion in the body, from 0.
    """
    height, width = body.pixels_HW3.shape[:2]
    numbers = np.flatnonzero(body.inside())
    off = rng.normal(0, jitter, (len(body.sizes_N), 4)) * body.sizes_N[:, None]
    boxes_N4 = body.boxes + off
    rows: list[dict[str, Any]] = [
        {
            "rank": int(number),
            "urgent": False,
            "urgent_risk": 0.01,
            **dict(zip(("x1", "y1", "x2", "y2"), boxes_N4[number].tolist(), strict=True)),
        }
        for number in numbers
    ]
    colours_N3 = body.colours_N3 + rng.normal(0, 1.0, body.colours_N3.shape)
    photo = PhotoSummary(
        name=name,
        sha256="00" * 32,
        width=width,
        height=height,
        mm_per_pixel=None,
        tiles=1,
        tiles_without_skin=0,
        failed_tiles=0,
        overview="",
    )
    return ScanView(photo, body.pixels_HW3, boxes_N4[numbers], colours_N3[numbers], tuple(rows))
