"""Statistics of the image itself: colour, and contrast in bands of detail, before any network.

Another camera, lens, lamp or software changes these, which deep features are trained to ignore.
The bands follow the statistics of natural scenes by which image quality is judged without a
reference (Mittal et al. 2013, NIQE): here of Haar wavelets (Mallat 1989), fitted to one Gaussian.
They need the pixels alone, so every runtime that serves a bundle delivers them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.models.classifier.preprocess import Preprocess, centre_square
from skindx.models.ood.features import Singles

SIDE = 128
"""Each photo is reduced to a square of so many pixels: bands then mean the same in all photos."""
LEVELS = 4

# N = images, F = statistics, S = side, B = values of a band

_VIEW = Preprocess(size=SIDE)
_OPPONENT = np.array([[1, 1, 1], [1, -1, 0], [0.5, 0.5, -1]], dtype=np.float32).T / np.float32(3)
"""Brightness, red against green, yellow against blue."""


def image_statistics(photos: Sequence[NDArray[np.uint8]]) -> Singles:
    """Return F statistics of each decoded photo (H x W x 3 RGB uint8), N x F; at least one."""
    return np.stack([_statistics(centre_square(photo, _VIEW)) for photo in photos])


def _statistics(square_SS3: NDArray[np.uint8]) -> Singles:
    found: list[float] = []
    opponent_SS3 = np.sqrt(square_SS3.astype(np.float32) / 255) @ _OPPONENT
    for channel in range(3):
        plane_SS = np.ascontiguousarray(opponent_SS3[..., channel])
        found += [float(plane_SS.mean()), _log(float(plane_SS.std()))]
        for _ in range(LEVELS):
            plane_SS, *bands = _haar(plane_SS)
            for band in bands:
                size = float(np.abs(band).mean())
                # Heavier tails than a Gaussian's: hairs and edges; lighter: noise and blur.
                shape = float(np.sqrt((band**2).mean())) / (size + 1e-4)
                found += [_log(size), _log(shape)]
    return np.array(found, dtype=np.float32)


def _log(value: float) -> float:
    # The offset is below what 8 bits can show: a flat image is far off, but not infinitely.
    return float(np.log(value + 1e-4))


def _haar(plane_SS: Any) -> tuple[Any, Any, Any, Any]:
    """Return the halved plane, and differences across, down and crosswise."""
    a, b = plane_SS[0::2, 0::2], plane_SS[0::2, 1::2]
    c, d = plane_SS[1::2, 0::2], plane_SS[1::2, 1::2]
    return (a + b + c + d) / 4, (a - b + c - d) / 4, (a + b - c - d) / 4, (a - b - c + d) / 4
