"""Flat colour: neighbouring pixels of the very same value, as programs fill areas with it.

Light on a surface changes from pixel to pixel and a sensor adds noise; a fill does neither, and
stays exact when it is averaged or compressed as JPEG. Black and white are no fills: rims of
dermoscopes, borders, and light that burnt out are as flat.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLACK, WHITE = 12, 243
"""A pixel whose channels are all darker, or all brighter, may be a rim or burnt out."""


def flat_mask(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return H x W: the pixel and its eight neighbours are equal; beyond the edge all are."""
    import cv2

    # One number a pixel: three channels compared at once.
    whole_HW: Any = cv2.cvtColor(pixels_HW3, cv2.COLOR_RGB2RGBA).view(np.uint32)[..., 0]
    across_HW = np.ones((whole_HW.shape[0], whole_HW.shape[1] + 1), bool)
    np.equal(whole_HW[:, 1:], whole_HW[:, :-1], out=across_HW[:, 1:-1])
    row_HW = across_HW[:, 1:] & across_HW[:, :-1]
    down_HW = np.ones((whole_HW.shape[0] + 1, whole_HW.shape[1]), bool)
    np.equal(whole_HW[1:], whole_HW[:-1], out=down_HW[1:-1])
    flat_HW = row_HW & down_HW[1:] & down_HW[:-1]
    flat_HW[1:] &= row_HW[:-1]
    flat_HW[:-1] &= row_HW[1:]
    return flat_HW


def fill_mask(pixels_HW3: NDArray[np.uint8], flat_HW: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return H x W: the pixel is flat, and neither black nor white."""
    import cv2

    black_HW: Any = cv2.inRange(pixels_HW3, (0, 0, 0), (BLACK - 1,) * 3)
    white_HW: Any = cv2.inRange(pixels_HW3, (WHITE + 1,) * 3, (255, 255, 255))
    filled_HW: NDArray[np.bool_] = flat_HW & (cv2.bitwise_or(black_HW, white_HW) == 0)
    return filled_HW
