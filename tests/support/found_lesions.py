"""Lesions as a scan finds them, made up."""

from collections.abc import Sequence

import numpy as np

from skindx.data.box import Box
from skindx.scan.scanned_lesions import ScannedLesion, ScannedPhoto

CLASSES = ("nevus", "melanoma", "keratosis")


def lesion(
    x: float = 100,
    y: float = 100,
    size: float = 40,
    *,
    risk: float | None = 0.02,
    urgent: bool | None = False,
    embedding: Sequence[float] = (1, 0, 0, 0),
    colour: tuple[float, float, float] = (-12, 4, 2),
    score: float = 0.9,
    possible: tuple[str, ...] = ("nevus",),
    ood: float | None = 0.5,
) -> ScannedLesion:
    half = size / 2
    vector, share = np.array(embedding, np.float64), risk or 0.0
    return ScannedLesion(
        Box(x - half, y - half, x + half, y + half, "lesion", "detector", score),
        np.array([0.9 * (1 - share), share, 0.1 * (1 - share)]),
        risk,
        urgent,
        possible,
        ood,
        (vector / np.linalg.norm(vector)).astype(np.float32),
        colour,
    )


def alike(rng: np.random.Generator, count: int, side: int = 2000) -> list[ScannedLesion]:
    """Return ordinary lesions of one person."""
    return [
        lesion(
            *rng.uniform(60, side - 60, 2),
            40 * float(np.exp(rng.normal(0, 0.2))),
            embedding=np.array([1, 0, 0, 0, 0, 0]) + rng.normal(0, 0.1, 6),
            colour=tuple(np.array([-12, 4, 2]) + rng.normal(0, 1.5, 3)),
        )
        for _ in range(count)
    ]


def photo(
    lesions: Sequence[ScannedLesion],
    name: str = "back.jpg",
    *,
    side: int = 2000,
    mm_per_pixel: float | None = None,
    sha256: str = "ab" * 32,
) -> ScannedPhoto:
    return ScannedPhoto(name, sha256, side, side, 40, 8, 0, tuple(lesions), mm_per_pixel)
