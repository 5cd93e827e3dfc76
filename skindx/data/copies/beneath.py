"""Agreement of two aligned images' gradients beneath overlays that both share.

A gradient is divided by its length where it is clear, and vanishes where it is noise (normalised
gradient field: Haber, Modersitzki 2006, "Intensity gradient based registration and fusion of
multi-modal images"). So a strong edge has no more say than a faint one. In a correlation the words
and frames that different images share outweigh everything else; here they have the say of their
area, and thin lines have none.
"""

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.alignment import Aligned

# H, W = sides of the frame

Field = NDArray[np.float32]

_NOISE = 0.5
"""Grey levels a half-size pixel: the length of a gradient that counts by its half."""
_BLUR = 1.5
_THIN = 9
"""Half-size pixels: in a median over such a square lines of less than half its side vanish."""
_LEAST = 30.0
"""Sum of weights from which on the gradients have a say."""


def beneath(aligned: Aligned) -> float:
    """Return how parallel the gradients are: 1 if all are, about 0 in images of different things.

    Each place counts by how clear its gradients are in both images.
    """
    import cv2

    # Where only one of them shows something there is no gradient of both.
    inside_HW = cv2.erode(aligned.shown_HW.astype(np.uint8), np.ones((5, 5), np.uint8))
    (x_HW, y_HW), (u_HW, v_HW) = (
        _directions(_without_lines(field_HW, aligned.shown_HW))
        for field_HW in (aligned.first_HW, aligned.second_HW)
    )
    agree_HW = inside_HW * (x_HW * u_HW + y_HW * v_HW)
    most_HW = inside_HW * np.hypot(x_HW, y_HW) * np.hypot(u_HW, v_HW)
    return float(agree_HW.sum() / (most_HW.sum() + _LEAST))


def _directions(field_HW: Field) -> tuple[Field, Field]:
    """Return the normalised gradient field: across and along."""
    import cv2

    smooth_HW = cv2.GaussianBlur(field_HW, (0, 0), _BLUR)
    x_HW = cv2.Sobel(smooth_HW, cv2.CV_32F, 1, 0, scale=1 / 8)
    y_HW = cv2.Sobel(smooth_HW, cv2.CV_32F, 0, 1, scale=1 / 8)
    length_HW = np.sqrt(x_HW**2 + y_HW**2 + _NOISE**2)
    return x_HW / length_HW, y_HW / length_HW


def _without_lines(field_HW: Field, shown_HW: NDArray[np.bool_]) -> Field:
    import cv2

    # What is not shown must not reach into what is.
    middle = float(field_HW[shown_HW].mean())
    filled_HW = np.where(shown_HW, field_HW, middle).clip(0, 255).astype(np.uint8)
    return np.asarray(cv2.medianBlur(filled_HW, _THIN), np.float32)
