"""The gate for blur: how much fine detail is left, relative to somewhat coarser detail.

The variance of the Laplacian alone would call smooth skin blurred. The ratio of two neighbouring
bands of a difference-of-Gaussians pyramid (Burt and Adelson 1983) is free of contrast and, at a
fixed size of the photo, of scale; what 8-bit pixels and JPEG add to the fine band is taken off.
Of 200 dermoscopic and 200 clinical photos none was refused, and 0.3 % with a tenth of their light;
blurred by 1 pixel of the 160, where the networks begin to lose structures, 44 % were refused and
55 % remarked on, by 1.5 pixels 97 and 3 %, by 2 pixels 99 % were refused.
"""

import math

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.gates.gate import Finding, Reduced

FLOOR = 0.3
"""Variance, in squared levels, that rounding and compression leave in the finest band."""
BRIGHT = 150.0
"""Below this brightness detail is fainter too: the floor sinks with it, for dark skin's sake."""
REFUSED, REMARKED = -0.5, -0.2


def sharpness(luma_HW: NDArray[np.float32]) -> float:
    """Return log10 of the finest band's variance over the next one's; -3 at the least."""
    import cv2

    fine_HW, coarse_HW = (cv2.GaussianBlur(luma_HW, (0, 0), sigma) for sigma in (1, 2))
    light = min(1.0, float(np.percentile(luma_HW, 95)) / BRIGHT)
    finest = float((luma_HW - fine_HW).var()) - FLOOR * light**2
    return math.log10(max(finest, 1e-3) / (float((fine_HW - coarse_HW).var()) + 1e-3))


def blurred(photo: Reduced) -> Finding | None:
    """Find a photo that is out of focus or shaken."""
    value = sharpness(photo.luma)
    if value >= REMARKED:
        return None
    if value >= REFUSED:
        return Finding("soft", fatal=False)
    return Finding("blurred", fatal=True)
