"""Whether the gradients of two aligned images agree, place by place.

A gradient is divided by its length where it is clear, and vanishes where it is noise (normalised
gradient field: Haber, Modersitzki 2006, "Intensity gradient based registration and fusion of
multi-modal images"). So a strong edge has no more say than a faint one. In a correlation the words
and frames that different images share outweigh everything else; here they have the say of their
area.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.alignment import Aligned

# H, W = sides of the frame

Field = NDArray[np.float32]

_NOISE = 0.5
"""Grey levels a half-size pixel: the length of a gradient that counts half."""
_BLUR = 1.5
_THIN = 9
"""Half-size pixels: in a median over such a square lines of less than half its side vanish."""
_AROUND = 33
"""Half-size pixels: side of the square in which the agreement around a place is taken."""
_LEAST = 30.0
"""Sum of weights from which on the gradients have a say."""
_CLEAR = 0.08
"""Mean weight around a place from which on something is to be seen there."""


class Slopes(NamedTuple):
    """Agreement is 1 where all gradients are parallel, about 0 in images of different things."""

    edges: float
    """Of the images as they are."""
    beneath: float
    """Without thin lines: what lies under the words of a watermark."""
    upheld: float
    """Share of the places that show something around which at least half agrees."""


def slopes(aligned: Aligned) -> Slopes:
    """Return how far the gradients of two images in their common frame agree."""
    import cv2

    # Where only one of them shows something there is no gradient of both.
    inside_HW = cv2.erode(aligned.shown_HW.astype(np.uint8), np.ones((5, 5), np.uint8))
    pair = (aligned.first_HW, aligned.second_HW)
    agree_HW, weight_HW = _agreement(*pair, inside_HW)
    around_HW, seen_HW = (
        cv2.blur(field, (_AROUND, _AROUND), borderType=cv2.BORDER_CONSTANT)
        for field in (agree_HW, weight_HW)
    )
    clear_HW = seen_HW > _CLEAR
    upheld_HW = clear_HW & (around_HW >= 0.5 * seen_HW)
    first_HW, second_HW = (_without_lines(field_HW, aligned.shown_HW) for field_HW in pair)
    return Slopes(
        _share(agree_HW, weight_HW),
        _share(*_agreement(first_HW, second_HW, inside_HW)),
        float(upheld_HW.sum() / max(1, clear_HW.sum())),
    )


def _agreement(
    first_HW: Field, second_HW: Field, inside_HW: NDArray[np.uint8]
) -> tuple[Field, Field]:
    """Return the product of the two fields, and what it would be if all were parallel."""
    import cv2

    across, along, length = [], [], []
    for field_HW in (first_HW, second_HW):
        smooth_HW = cv2.GaussianBlur(field_HW, (0, 0), _BLUR)
        x_HW, y_HW = (cv2.Sobel(smooth_HW, cv2.CV_32F, dx, 1 - dx, scale=1 / 8) for dx in (1, 0))
        root_HW = np.sqrt(x_HW**2 + y_HW**2 + _NOISE**2)
        across.append(x_HW / root_HW)
        along.append(y_HW / root_HW)
        length.append(np.sqrt(across[-1] ** 2 + along[-1] ** 2))
    agree_HW: Field = inside_HW * (across[0] * across[1] + along[0] * along[1])
    weight_HW: Field = inside_HW * (length[0] * length[1])
    return agree_HW, weight_HW


def _without_lines(field_HW: Field, shown_HW: NDArray[np.bool_]) -> Field:
    import cv2

    # What is not shown must not reach into what is.
    middle = float(field_HW[shown_HW].mean())
    filled_HW = np.where(shown_HW, field_HW, middle).clip(0, 255).astype(np.uint8)
    return cv2.medianBlur(filled_HW, _THIN).astype(np.float32)


def _share(agree_HW: Field, weight_HW: Field) -> float:
    return float(agree_HW.sum() / (weight_HW.sum() + _LEAST))
