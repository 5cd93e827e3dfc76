"""Smaller images of the same shape, averaged so that nothing aliases."""

import numpy as np
from numpy.typing import NDArray

# H, W = height, width


def shrunk_size(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Return (height, width) with a shorter side of `short_side`, the aspect ratio kept."""
    scale = short_side / min(height, width)
    return max(short_side, round(height * scale)), max(short_side, round(width * scale))


def shrink(image_HW3: NDArray[np.uint8], short_side: int) -> NDArray[np.uint8]:
    """Resize so that the shorter side measures `short_side` pixels, keeping the aspect ratio."""
    import cv2

    height, width = image_HW3.shape[:2]
    rows, columns = shrunk_size(height, width, short_side)
    if (rows, columns) == (height, width):
        return np.ascontiguousarray(image_HW3)
    # Area averaging is the only one of OpenCV's filters that does not alias when shrinking.
    smaller = short_side < min(height, width)
    interpolation = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    resized: NDArray[np.uint8] = cv2.resize(image_HW3, (columns, rows), interpolation=interpolation)
    return resized
