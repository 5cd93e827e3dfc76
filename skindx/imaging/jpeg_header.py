"""A JPEG's header, read and checked once where the same bytes are decoded many times, as in epochs.

Reading it takes a twentieth of decoding in a tight loop, and three times as long between images,
when the interpreter's code has left the processor's caches.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.decode import MAX_PIXELS, ROUGH_FACTOR, orientation_of, turned
from skindx.imaging.decode_cost import jpeg_cost
from skindx.imaging.image_formats import image_suffix
from skindx.imaging.srgb import FileColours
from skindx.imaging.stored_colours import PLAIN, SRGB, Decoding, StoredColours, stored_colours


class JpegHeader(NamedTuple):
    """What the header of a JPEG says, checked once where the same bytes are decoded many times."""

    orientation: int
    colours: StoredColours

    def decode(self, jpeg: bytes, at_least: tuple[int, int]) -> NDArray[np.uint8] | None:
        """Return what `decode` makes of the bytes that it was read from; None if they need it."""
        import simplejpeg

        height, width = at_least if self.orientation < 5 else at_least[::-1]
        try:
            pixels_HWC: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                jpeg, "RGB", True, True, height, width, ROUGH_FACTOR
            )
        except (ValueError, MemoryError):
            return None
        if self.colours.profile:
            pixels_HWC = FileColours(self.colours).rgb(pixels_HWC)
        return pixels_HWC if self.orientation == 1 else turned(pixels_HWC, self.orientation)


_PLAIN_HEADER = JpegHeader(1, PLAIN)


def read_header(data: bytes, decoding: Decoding = SRGB) -> JpegHeader | None:
    """Return the header of a JPEG; None for what `decode` alone takes, refuses or mends."""
    import simplejpeg

    if image_suffix(data[:16]) != ".jpg":
        return None
    try:
        height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(data)
        # What may be decoded at full scale may be at any.
        jpeg_cost(data, width, height, colorspace, subsampling).check(MAX_PIXELS)
    except ValueError:
        return None
    if colorspace != "YCbCr":
        return None
    colours = stored_colours(data, "JPEG") if decoding == SRGB else PLAIN
    header = JpegHeader(orientation_of(data, "JPEG"), colours)
    return _PLAIN_HEADER if header == _PLAIN_HEADER else header
