"""The gate for photos without skin, by colour.

Melanin and blood leave every skin type between violet red and greenish yellow, light or dark, and
never quite grey; dermoscopes shift it within that range. So the hue of coloured
pixels decides and brightness does not, so light and dark skin are treated alike.
Of 200 dermoscopic photos none was refused, of 200 clinical photos 1, at full and at a tenth of
their light. The gate rejects painted documents, screens, landscapes, foliage, water and grey noise.
Wood and colour noise pass it; the bundle's out-of-distribution detector handles them.
"""

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.gates.gate import Finding, Reduced

HUES_DEGREES = (-75.0, 115.0)
"""Angle in CIELAB's a*b* plane."""
LEAST_CHROMA = 3.0
LEAST_SHARE = 0.1


def skin_mask(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return H x W: the pixel has a colour of skin."""
    import cv2

    lab_HW3 = cv2.cvtColor(pixels_HW3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    a_HW, b_HW = lab_HW3[..., 1], lab_HW3[..., 2]
    hue_HW = np.degrees(np.arctan2(b_HW, a_HW))
    low, high = HUES_DEGREES
    coloured_HW = np.hypot(a_HW, b_HW) > LEAST_CHROMA
    mask_HW: NDArray[np.bool_] = coloured_HW & (hue_HW > low) & (hue_HW < high)
    return mask_HW


def skin_share(photo: Reduced) -> float:
    """Return the share of pixels that have a colour of skin."""
    return float(skin_mask(photo.pixels_HWC).mean())


def no_skin(photo: Reduced) -> Finding | None:
    """Find a photo that shows hardly anything of the colours of skin."""
    if skin_share(photo) >= LEAST_SHARE:
        return None
    return Finding("no-skin", fatal=True)
