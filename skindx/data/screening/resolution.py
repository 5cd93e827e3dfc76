"""How many pixels an image is worth: an enlargement shows no more than what it was made from.

The measure asks below which frequency the image can be cut off without a loss that matters. An
enlargement holds nothing above the limit of its original, so both are worth the same.
"""

import numpy as np
from numpy.typing import NDArray

# H, W = pixels; L = sampled lines, N = pixels of a line

_LINES = 48
"""Rows and columns that are looked at, evenly spread over the image."""
_LOSS = 2.0
"""Mean square loss (grey levels squared) that does not matter: 45 dB of 255, less than JPEG's."""
_FACTORS = (2, 3, 4)
"""Whole factors of enlargements that only repeat pixels, which look sharp to any spectrum."""
_EVEN = 0.2
"""Differences inside repeated pixels against those between them, squared; JPEG adds some."""
EMPTY_PIXELS = 0.25
"""Exponent by which pixels that carry nothing count against an image."""


def effective_pixels(grey_HW: NDArray[np.uint8]) -> float:
    """Return the number of pixels that an image of the same detail needs, at least 1.

    That is the product over both axes of the frequency (in half cycles an image) above which the
    cosine spectrum of sampled lines holds no more than _LOSS.
    """
    height, width = grey_HW.shape
    rows = grey_HW[np.linspace(0, height - 1, min(_LINES, height)).astype(int)]
    columns = grey_HW[:, np.linspace(0, width - 1, min(_LINES, width)).astype(int)].T
    return _cut_off(rows) * _cut_off(columns)


def worth(effective: float, pixels: int) -> float:
    """Return what duplicates are compared by: detail, less for pixels that carry none.

    Of an enlargement and its original, which have the same detail but for what JPEG adds, the
    original is worth more; of a sharp image and a smaller copy, the larger one.
    """
    return float(effective * (effective / pixels) ** EMPTY_PIXELS)


def _cut_off(lines: NDArray[np.uint8]) -> float:
    import cv2

    length = lines.shape[1] // 2 * 2  # OpenCV transforms even lengths
    lines_LN = np.ascontiguousarray(lines[:, :length], np.float32)
    if length < 2:
        return 1.0
    power_N = np.square(cv2.dct(lines_LN, flags=cv2.DCT_ROWS)).mean(axis=0) / length
    above_N = np.cumsum(power_N[::-1])[::-1]  # energy of this frequency and all higher ones
    needed = int(np.searchsorted(-above_N, -_LOSS))
    return float(max(1.0, min(needed, length / _repeated(lines_LN))))


def _repeated(lines_LN: NDArray[np.float32]) -> int:
    """Return how often each pixel of a line stands there, 1 where neighbours differ evenly."""
    squares_N = np.square(np.diff(lines_LN, axis=1)).mean(axis=0)
    found = 1
    for factor in _FACTORS if len(squares_N) >= max(_FACTORS) else ():
        by_phase = [float(squares_N[phase::factor].mean()) for phase in range(factor)]
        between = max(by_phase)
        inside = (sum(by_phase) - between) / (factor - 1)
        if between > 0 and inside < _EVEN * between:
            found = factor
    return found
