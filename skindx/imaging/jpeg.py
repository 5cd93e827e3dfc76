"""JPEG by libjpeg-turbo in strict mode, which finds damage that other decoders let pass."""

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.cost import jpeg_cost
from skindx.imaging.damage import refusal
from skindx.imaging.jpeg_repair import read_jpeg
from skindx.imaging.orientation import orientation_of
from skindx.imaging.pillow import decode_with_pillow


def decode_jpeg(
    data: bytes, max_pixels: int, at_least: tuple[int, int] | None, rough: bool
) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 RGB, as stored; see `decode.decode`.

    Raises DamagedImage for what takes too much, and whatever the decoder raises.
    """
    return read_jpeg(data, lambda jpeg: _pixels(jpeg, max_pixels, at_least, rough))


def _pixels(
    data: bytes, max_pixels: int, at_least: tuple[int, int] | None, rough: bool
) -> NDArray[np.uint8]:
    import simplejpeg

    height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(data)
    scale, scaled = {}, None
    if at_least:
        # 7/8 and 6/8 would take longer than the whole image.
        scale = {"min_height": at_least[0], "min_width": at_least[1], "min_factor": 1.5}
        scaled = simplejpeg.decode_jpeg_header(data, **scale)[:2]
    jpeg_cost(data, width, height, colorspace, subsampling, scaled=scaled).check(max_pixels)
    if colorspace not in ("CMYK", "YCCK"):
        fast = rough and at_least is not None
        pixels_HWC: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data, "RGB", fastdct=fast, fastupsample=fast, **scale
        )
        return pixels_HWC
    # libjpeg-turbo has no way from four inks to RGB: it looks for damage, Pillow converts.
    simplejpeg.decode_jpeg(data, "CMYK")
    return decode_with_pillow(data, "JPEG", max_pixels)


def upright_jpeg_size(data: bytes) -> tuple[int, int]:
    """Return (height, width) of a JPEG at full scale, by its header. Raises DamagedImage."""
    import simplejpeg

    try:
        height, width, _, _ = read_jpeg(data, simplejpeg.decode_jpeg_header)
    except Exception as error:
        raise refusal(error) from error
    return (width, height) if orientation_of(data, "JPEG") >= 5 else (height, width)
