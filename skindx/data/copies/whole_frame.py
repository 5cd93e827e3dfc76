"""Whether two images are one picture, encoded, scaled, mirrored or turned in another way.

Near hashes only say that two images are alike in their 64 coarsest features: a dark mole in the
middle of light skin is within six bits of a hundred others, and each of those of a hundred more.
So the two are laid on each other, in the one of eight orientations in which they correlate best,
refined on the pixels (Evangelidis, Psarakis 2008), and compared there. No points are needed: a
blurred or smooth copy has none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.describe import Description, halved
from skindx.data.copies.geometry import (
    FINE,
    FINE_NOISE,
    FINE_WINDOW,
    NOISE,
    WINDOW,
    Aligned,
    align,
    local_correlation,
)
from skindx.data.copies.overlap import beneath, both

# H, W = sides of an image or of the frame, O = the eight orientations

_COARSE = 32
"""Pixels a side, on which the orientation is chosen."""
_COARSE_LEAST = 0.85
_COVERED = 0.9
"""An encoding shows all of the picture; a crop needs points."""
_LEAST_TEXTURE = 30.0
_CONTRAST = 3.0
"""Standard deviation in grey levels below which an image shows nothing to compare."""
_NCC, _BENEATH, _FINE = 0.7, 0.88, 0.4
"""Least local correlation and parallel gradients; least correlation of detail. Two pictures of
different lesions whose hashes are near have a correlation of detail below 0.35."""
_EVEN, _REST = 0.985, 0.45
"""Limits for a blurred copy, which has no detail: least correlation, and the largest rest, in
standard deviations, of 98 of 100 pixels."""
_BLUR = 1.5


@dataclass(frozen=True)
class SamePicture:
    """Two encodings of one picture, laid on each other."""

    aligned: Aligned
    ncc: float
    mirrored: bool


def same_picture(first: Description, second: Description) -> SamePicture | None:
    """Return how the first image lies on the second, if both are one picture; else None."""
    smalls = first.small_HW, second.small_HW
    if any(small_HW.size == 0 or small_HW.std() < _CONTRAST for small_HW in smalls):
        return None
    likeness_O, maps_O23 = _orientations(first, second)
    best = int(np.argmax(likeness_O))
    if likeness_O[best] < _COARSE_LEAST:
        return None
    aligned = align(first, second, maps_O23[best])
    if aligned is None or aligned.covered < _COVERED:
        return None
    ncc = _texture_mean(*local_correlation(*both(aligned), aligned.shown_HW, WINDOW, NOISE))
    alike = ncc >= _NCC and beneath(aligned) >= _BENEATH
    if alike and (_detail(aligned) >= _FINE or _even(aligned)):
        return SamePicture(aligned, ncc, best >= 4)
    return None


def _orientations(
    first: Description, second: Description
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the correlation and the map from the first to the second for each orientation.

    Four quarter turns, then the same of the mirrored image. A map fills the second image.
    """
    other_HW = _coarse(second)
    likeness, maps = [], []
    for mirrored in (False, True):
        shown_HW = _coarse(first)
        height, width = first.shape_hw
        map_33 = np.eye(3)
        if mirrored:
            shown_HW = shown_HW[:, ::-1]
            map_33 = np.array([[-1.0, 0, width - 1], [0, 1, 0], [0, 0, 1]])
        for _ in range(4):
            likeness.append(float((shown_HW * other_HW).mean()))
            x, y = second.shape_hw[1] / width, second.shape_hw[0] / height
            fill_33 = np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1]])
            maps.append((fill_33 @ map_33)[:2])
            quarter_33 = np.array([[0.0, -1, height - 1], [1, 0, 0], [0, 0, 1]])
            map_33, shown_HW = quarter_33 @ map_33, np.rot90(shown_HW, -1)
            height, width = width, height
    return np.array(likeness), np.array(maps)


def _coarse(image: Description) -> NDArray[np.float64]:
    """Return a small square of mean 0 and standard deviation 1."""
    import cv2

    small_HW = image.small_HW
    while min(small_HW.shape) >= 2 * _COARSE:
        small_HW = halved(np.ascontiguousarray(small_HW))
    side = (_COARSE, _COARSE)
    square_HW = cv2.resize(small_HW, side, interpolation=cv2.INTER_AREA).astype(np.float64)
    return np.asarray((square_HW - square_HW.mean()) / max(square_HW.std(), 1e-6))


def _texture_mean(value_HW: NDArray[np.float32], weight_HW: NDArray[np.float32]) -> float:
    return float((value_HW * weight_HW).sum() / (weight_HW.sum() + _LEAST_TEXTURE))


def _detail(aligned: Aligned) -> float:
    """Return the local correlation of what a blur takes away."""
    import cv2

    first_HW, second_HW = (
        field_HW - cv2.GaussianBlur(field_HW, (0, 0), FINE) for field_HW in both(aligned)
    )
    return _texture_mean(
        *local_correlation(first_HW, second_HW, aligned.shown_HW, FINE_WINDOW, FINE_NOISE)
    )


def _even(aligned: Aligned) -> bool:
    """Tell whether one gain and one offset explain nearly all of the brightness."""
    import cv2

    first, second = (
        cv2.GaussianBlur(field_HW, (0, 0), _BLUR)[aligned.shown_HW].astype(np.float64)
        for field_HW in both(aligned)
    )
    spread = max(float(first.std()), 1e-6), max(float(second.std()), 1e-6)
    first, second = (first - first.mean()) / spread[0], (second - second.mean()) / spread[1]
    rest = np.percentile(np.abs(first - second), 98)
    return bool((first * second).mean() >= _EVEN and rest <= _REST)
