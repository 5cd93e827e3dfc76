"""A photo as it may be shown: upright, of modest size, without any metadata."""

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.formats import photo_format
from skindx.imaging.sandboxed_images import small_jpeg

SMALL_SIDE = 240
"""Pixels of the longer side beside the form: twice as many as it takes there."""
LONGEST_SIDE = 1280
"""Pixels: what a page shows; decoding and sending more costs a phone seconds."""
_QUALITY = 88


def small_view(data: bytes, pixels_HWC: NDArray[np.uint8]) -> bytes:
    """Return a small JPEG of a HEIC photo, which most browsers cannot show; b"" of any other."""
    return view_jpeg(pixels_HWC, SMALL_SIDE) if photo_format(data[:16]) == "HEIC" else b""


def view_jpeg(pixels_HWC: NDArray[np.uint8], longest: int = LONGEST_SIDE) -> bytes:
    """Return a JPEG of at most `longest` pixels on its longer side, without any metadata."""
    return small_jpeg(pixels_HWC, longest, quality=_QUALITY)
