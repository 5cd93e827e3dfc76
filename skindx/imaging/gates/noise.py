"""Noise: neighbouring pixels that have nothing to do with each other.

The spectrum of scenes falls with frequency, about as its inverse square (Field 1987, "Relations
between the statistics of natural images and the response properties of cortical cells"), that of
noise does not; and colours change slowly in scenes, so that JPEG keeps a quarter of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

EVEN = 8.0
"""Levels of spread below which an image is even, and what differs in it too little to matter."""


def roughness(plane_HW: NDArray[np.uint8] | NDArray[np.float32]) -> float:
    """Return which share of a plane's variance differs from the mean of 3 x 3 pixels.

    8/9 for independent pixels, less where the plane is even.
    """
    import cv2

    plane: Any = plane_HW if plane_HW.dtype == np.float32 else plane_HW.astype(np.float32)
    fine = cv2.subtract(plane, cv2.blur(plane, (3, 3)))
    _, spread = cv2.meanStdDev(plane)
    _, rest = cv2.meanStdDev(fine)
    return float(rest[0, 0] ** 2 / (spread[0, 0] ** 2 + EVEN**2))


def colour_roughness(pixels_HW3: NDArray[np.uint8]) -> float:
    """Return the higher one of red - green and blue - green."""
    import cv2

    red, green, blue = cv2.split(pixels_HW3)
    planes: list[Any] = [cv2.subtract(other, green, dtype=cv2.CV_32F) for other in (red, blue)]
    return max(map(roughness, planes))
