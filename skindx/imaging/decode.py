"""Bytes to pixels: upright 8-bit RGB, or a reason why not; nothing above a cap is decoded."""

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.cost import jpeg_cost
from skindx.imaging.damage import DamagedImage, refusal
from skindx.imaging.formats import HEAD, image_suffix, unusable
from skindx.imaging.jpeg import decode_jpeg
from skindx.imaging.jpeg_repair import read_jpeg
from skindx.imaging.orientation import orientation_of, turned
from skindx.imaging.pillow import decode_with_pillow

MAX_PIXELS = 50_000_000

# The one plug-in of Pillow that may see the bytes; without a list it would try all of them.
FORMATS = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".bmp": "BMP", ".tif": "TIFF"}


def decode(
    data: bytes,
    *,
    max_pixels: int = MAX_PIXELS,
    at_least: tuple[int, int] | None = None,
    rough: bool = True,
) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 RGB, turned as EXIF says; alpha is laid on white.

    With `at_least` = (height, width) a larger JPEG may come at a smaller scale of its DCT, no side
    below these: averaged, as by resizing, and for large images several times as fast. If `rough`,
    the cosine transform and the colours are then rougher too, which takes 8 % off the time: pixels
    differ by a few levels from those of a resized whole image. For training crops, never for a
    verdict.

    A file of several images gives its first. JPEG goes through libjpeg-turbo in strict mode,
    which finds damage in mid-stream that Pillow, OpenCV and torchvision let pass. Raises
    DamagedImage, also for what would take too many pixels, passes or bytes of memory (see
    `Cost`), which is checked before any pixel is decoded.
    """
    suffix = image_suffix(data[:16])
    if suffix is None:
        reason, message = unusable(data[:HEAD])
        raise DamagedImage(message, reason)
    try:
        if suffix == ".jpg":
            orientation = orientation_of(data, "JPEG")
            if at_least and orientation >= 5:
                at_least = at_least[1], at_least[0]
            pixels_HWC = decode_jpeg(data, max_pixels, at_least, rough)
        else:
            pixels_HWC = decode_with_pillow(data, FORMATS[suffix], max_pixels)
            # It may decode, so after the cap. Pillow has turned a TIFF already.
            orientation = 1 if suffix == ".tif" else orientation_of(data, FORMATS[suffix])
        return turned(pixels_HWC, orientation)
    except DamagedImage:
        raise
    except Exception as error:
        raise refusal(error) from error


def import_decoders() -> None:
    """Import all that decoding needs: a sandboxed process could not, once its memory is limited."""
    import cv2
    import simplejpeg  # noqa: F401
    from PIL import Image

    Image.preinit()
    cv2.setNumThreads(1)  # the processes are the threads


def decode_small(data: bytes, side: int, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Return grey_HW, upright, of a JPEG at the smallest scale with no side shorter than `side`.

    libjpeg-turbo scales in the cosine domain, by up to 8, and leaves the colours out; what is no
    JPEG, or shorter than `side`, comes at full size. Raises DamagedImage.
    """
    import cv2

    try:
        if image_suffix(data[:16]) == ".jpg":
            small_HW = read_jpeg(data, lambda jpeg: _small_grey(jpeg, side, max_pixels))
            if small_HW is not None:
                return turned(small_HW, orientation_of(data, "JPEG"))
        grey_HW: NDArray[np.uint8] = cv2.cvtColor(
            decode(data, max_pixels=max_pixels), cv2.COLOR_RGB2GRAY
        )
        return grey_HW
    except DamagedImage:
        raise
    except Exception as error:
        raise refusal(error) from error


def _small_grey(jpeg: bytes, side: int, max_pixels: int) -> NDArray[np.uint8] | None:
    """Return grey_HW as stored; None for colours that libjpeg-turbo does not turn into grey."""
    import simplejpeg

    height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(jpeg)
    jpeg_cost(jpeg, width, height, colorspace, subsampling).check(max_pixels)
    if colorspace not in ("YCbCr", "Gray"):
        return None
    sides = {"min_height": min(side, height), "min_width": min(side, width)}
    small_HW: NDArray[np.uint8] = simplejpeg.decode_jpeg(jpeg, "GRAY", **sides)[:, :, 0]
    return small_HW
