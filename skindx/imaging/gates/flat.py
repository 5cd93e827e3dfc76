"""Flat colour: neighbouring pixels of the very same value, as programs fill areas with it.

Light on a surface changes from pixel to pixel and a sensor adds noise; a fill does neither, and
stays exact when it is averaged or compressed as JPEG. Black and white are left out: rims of
dermoscopes, borders, and light that burnt out are as flat.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLACK, WHITE = 12, 243
"""A pixel whose channels are all darker, or all brighter, may be a rim or burnt out."""


def flat_mask(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return H x W: the pixel and its eight neighbours are equal, and neither black nor white."""
    import cv2

    around = np.ones((3, 3), np.uint8)
    brightest_HW3: Any = cv2.dilate(pixels_HW3, around)
    darkest_HW3: Any = cv2.erode(pixels_HW3, around)
    same_HW = (brightest_HW3 == darkest_HW3).all(axis=2)
    most_HW, least_HW = pixels_HW3.max(axis=2), pixels_HW3.min(axis=2)
    flat_HW: NDArray[np.bool_] = same_HW & (most_HW >= BLACK) & (least_HW <= WHITE)
    return flat_HW
