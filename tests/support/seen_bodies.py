"""Painted bodies with moles that a camera sees twice, and the lesions a detector would find."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.data.synthetic.painter import bare_skin
from skindx.scan.compare.changes import LesionChange, Matched, changes, match
from skindx.scan.compare.registration import ScanView, register
from skindx.scan.outputs.scan_result import PhotoSummary


@dataclass(frozen=True)
class Body:
    """A photo and the truth about it: middles, diameters in pixels, colours minus the skin's."""

    pixels_HW3: NDArray[np.uint8]
    centres_N2: NDArray[np.float64]
    sizes_N: NDArray[np.float64]
    colours_N3: NDArray[np.float64]

    @property
    def boxes(self) -> NDArray[np.float64]:
        half_N1 = self.sizes_N[:, None] / 2
        return np.hstack([self.centres_N2 - half_N1, self.centres_N2 + half_N1])

    def inside(self) -> NDArray[np.bool_]:
        """Return which lesions the photo shows whole."""
        height, width = self.pixels_HW3.shape[:2]
        return np.asarray(((self.boxes >= 0) & (self.boxes < (width, height) * 2)).all(axis=1))


def paint_body(rng: np.random.Generator, lesions: int, size_wh: tuple[int, int]) -> Body:
    """Paint a body with so many lesions or fewer, none near another, most of them small."""
    unit = max(size_wh)
    centres, sizes = np.empty((0, 2)), np.empty(0)
    for _ in range(30 * lesions):
        size = float(np.clip(unit * 0.012 * np.exp(rng.normal(0, 0.5)), 0.006 * unit, 0.06 * unit))
        centre = rng.uniform(size, np.array(size_wh) - size)
        if len(sizes) < lesions and (np.hypot(*(centres - centre).T) > 1.6 * (sizes + size)).all():
            centres, sizes = np.vstack([centres, centre]), np.append(sizes, size)
    ink_HW1 = np.zeros((*size_wh[::-1], 1), np.float32)
    for centre, size in zip(centres, sizes, strict=True):
        turns = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        lobes = 0.5 * size * (1 + rng.uniform(0, 0.1) * np.cos(3 * turns + rng.uniform(0, 7)))
        outline = centre + lobes[:, None] * np.stack([np.cos(turns), np.sin(turns)], axis=1)
        points = np.rint(16 * outline).astype(np.int32)
        cv2.fillPoly(ink_HW1, [points], rng.uniform(0.7, 1), cv2.LINE_AA, shift=4)
    lit_HW3 = bare_skin(rng, size_wh[::-1]) * (1 - ink_HW1 * (0.4, 0.5, 0.5))
    colours_N3 = np.array([-22.0, 3, 3]) + rng.normal(0, (7, 2, 2), (len(sizes), 3))
    return Body(_bytes(lit_HW3), centres, sizes, colours_N3)


def seen_again(
    rng: np.random.Generator, body: Body, degrees: float, scale: float, noise: float = 0.01
) -> Body:
    """Return the body in a photo of the same size, turned and nearer, with noise."""
    height, width = body.pixels_HW3.shape[:2]
    map_23 = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, scale)
    image = cv2.warpAffine(body.pixels_HW3, map_23, (width, height), borderMode=cv2.BORDER_REFLECT)
    lit_HW3 = image / 255 + rng.normal(0, noise, image.shape)
    centres_N2 = body.centres_N2 @ map_23[:, :2].T + map_23[:, 2]
    return Body(_bytes(lit_HW3), centres_N2, body.sizes_N * scale, body.colours_N3)


def _bytes(lit_HW3: NDArray[np.floating]) -> NDArray[np.uint8]:
    return (np.clip(lit_HW3, 0, 1) * 255).astype(np.uint8)


def view_of(rng: np.random.Generator, body: Body, jitter: float = 0.04) -> ScanView:
    """Return the photo with the outlines of a detector that finds every whole lesion.

    Edges are off by `jitter` of a lesion's size; `rank` of each row is its number in the body.
    """
    height, width = body.pixels_HW3.shape[:2]
    boxes_N4 = body.boxes + rng.normal(0, jitter, (len(body.sizes_N), 4)) * body.sizes_N[:, None]
    numbers = np.flatnonzero(body.inside())
    rows = tuple(
        {"rank": int(number), "urgent": False, "urgent_risk": 0.01}
        | dict(zip(("x1", "y1", "x2", "y2"), boxes_N4[number].tolist(), strict=True))
        for number in numbers
    )
    colours_N3 = body.colours_N3 + rng.normal(0, 1.0, body.colours_N3.shape)
    photo = PhotoSummary(
        name="back.jpg", sha256="00" * 32, width=width, height=height, mm_per_pixel=None, tiles=1,
        tiles_without_skin=0, failed_tiles=0, overview="",
    )  # fmt: skip
    return ScanView(photo, body.pixels_HW3, boxes_N4[numbers], colours_N3[numbers], rows)


def compared(before: ScanView, after: ScanView) -> tuple[Matched, tuple[LesionChange, ...]]:
    matched = match(before, after, register(before, after))
    return matched, changes(before, after, matched)


def right(before: ScanView, after: ScanView, matched: Matched) -> tuple[int, int]:
    """Return how many lesions of both photos have the right partner, and how many there are."""
    shared = {row["rank"] for row in before.rows} & {row["rank"] for row in after.rows}
    pairs = [(before.rows[i]["rank"], after.rows[k]["rank"]) for i, k in matched.pairs_N2]
    return sum(one == other and one in shared for one, other in pairs), len(shared)
