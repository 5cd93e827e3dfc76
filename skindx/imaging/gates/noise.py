"""Noise: neighbouring pixels that have nothing to do with each other.

The spectrum of scenes falls with frequency, about as its inverse square (Field 1987, "Relations
between the statistics of natural images and the response properties of cortical cells"), that of
noise does not; and colours change slowly in scenes, so that JPEG keeps a quarter of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def roughness(luma_HW: NDArray[np.float32]) -> float:
    """Return the share of the luminance's variance that differs from the mean of 3 x 3 pixels.

    8/9 for independent pixels. The spread of an even image is taken as that of `EVEN` levels.
    """
    import cv2

    smooth_HW: Any = cv2.blur(luma_HW, (3, 3))
    return float((luma_HW - smooth_HW).var() / (float(luma_HW.var()) + EVEN**2))


EVEN = 8.0


def colour_roughness(pixels_HW3: NDArray[np.uint8]) -> float:
    """Return the same of two differences of colour: red - green, and blue - green."""
    import cv2

    found = []
    green_HW = pixels_HW3[..., 1].astype(np.float32)
    for channel in (0, 2):
        apart_HW = pixels_HW3[..., channel].astype(np.float32) - green_HW
        smooth_HW: Any = cv2.blur(apart_HW, (3, 3))
        found.append(float((apart_HW - smooth_HW).var() / (float(apart_HW.var()) + EVEN**2)))
    return max(found)
