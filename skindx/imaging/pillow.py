"""Decoding by Pillow, each format by its own plug-in, within the limits of `Cost`."""

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.cost import check_size, opened_cost, webp_cost
from skindx.imaging.damage import DamagedImage
from skindx.imaging.silence import hushed

if TYPE_CHECKING:
    from PIL import Image

_BAND_PIXELS = 1 << 20
"""Pillow's pixels are converted in bands of so many: its own copies would double the memory."""


def decode_with_pillow(data: bytes, kind: str, max_pixels: int) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 RGB, as stored, by the one plug-in of Pillow that `kind` names.

    Raises DamagedImage for what takes too much, and whatever the plug-in raises.
    """
    from PIL import Image

    if kind == "WEBP":
        webp_cost(data).check(max_pixels)
    # Pillow warns of what we refuse or repair ourselves: bombs, palettes, odd metadata.
    with hushed():
        try:
            opened = Image.open(io.BytesIO(data), formats=(kind,))
        except Image.DecompressionBombError:
            message = f"it has more pixels than the cap of {max_pixels}"
            raise DamagedImage(message, "too-many-pixels") from None
        with opened as image:
            if kind == "JPEG":
                check_size(*image.size, max_pixels)
            elif kind != "WEBP":
                opened_cost(image, data).check(max_pixels)
            image.load()
            width, height = image.size
            pixels_HWC = np.empty((height, width, 3), np.uint8)
            rows = max(1, _BAND_PIXELS // width)
            for top in range(0, height, rows):
                band = image.crop((0, top, width, min(top + rows, height)))
                pixels_HWC[top : top + rows] = _to_rgb(band)
            return pixels_HWC


def _to_rgb(image: "Image.Image") -> NDArray[np.uint8]:
    from PIL import Image

    if image.mode == "F":
        raise DamagedImage("floating-point pixels have no known white")
    if image.mode.startswith("I"):
        # 16-bit grey; Pillow's own conversion clips at 255 instead of scaling.
        deep_HW = np.asarray(image).astype(np.int64)
        grey_HW = np.clip(deep_HW >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey_HW[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        image = Image.alpha_composite(white, rgba)
    return np.asarray(image.convert("RGB"))
