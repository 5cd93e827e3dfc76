"""Lines of writing: dark strokes that stand in rows over the whole image, with gaps between.

Hair, vessels and pigment networks are as thin and as dark, but do not keep to rows; a ruler does,
in one row. The image is cut into upright strips, so that a page may be held askew.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

STRIP = 32
"""Pixels of the 160: wide enough for a word, narrow enough for 4 degrees."""
STROKE = 7
"""Pixels; what is wider than this is no stroke."""
CONTRAST = 12
"""Levels by which a stroke is darker than the ground around it, at the least."""
FEWEST_ROWS, LEAST_INK, LEAST_KEPT = 6, 0.04, 0.2
"""Of a strip with writing: rows of ink, share of ink, and how far it keeps to rows."""

# H, W = pixels, R = rows of pixels, S = strips


def line_share(luma_HW: NDArray[np.uint8]) -> float:
    """Return the share of the image's strips, upright or lying, that hold lines of writing."""
    import cv2

    square = np.ones((STROKE, STROKE), np.uint8)
    ground_HW: Any = cv2.morphologyEx(luma_HW, cv2.MORPH_CLOSE, square)
    ink_HW = (cv2.subtract(ground_HW, luma_HW) > CONTRAST).astype(np.float32)
    return max(_upright(ink_HW), _upright(ink_HW.T))


def _upright(ink_RW: NDArray[np.float32]) -> float:
    rows, width = ink_RW.shape
    strips = max(1, width // STRIP)
    cut_RS = ink_RW[:, : strips * STRIP].reshape(rows, strips, -1).mean(axis=2)
    ink_S = cut_RS.mean(axis=0)
    # 1 where each row of pixels is all ink or none, 0 where ink does not keep to rows.
    kept_S = cut_RS.var(axis=0) / np.maximum(ink_S * (1 - ink_S), 1e-6)
    above_RS = cut_RS > ink_S
    rows_S = (above_RS[1:] & ~above_RS[:-1]).sum(axis=0)
    lines_S = (kept_S > LEAST_KEPT) & (rows_S >= FEWEST_ROWS) & (ink_S > LEAST_INK)
    return float(lines_S.mean())
