"""Decoding by Pillow, each format by its own plug-in, within the limits of `Cost`."""

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.cost import check_size, is_plain_webp, opened_cost, webp_cost
from skindx.imaging.damage import DamagedImage
from skindx.imaging.silence import hushed

if TYPE_CHECKING:
    from PIL import Image

_PNG_NOTES = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_BAND_PIXELS = 1 << 20
"""Pillow's pixels are converted in bands of so many: its own copies would double the memory."""


def decode_with_pillow(data: bytes, kind: str, max_pixels: int) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 RGB, by the one plug-in of Pillow that `kind` names.

    They are as stored; a TIFF, which Pillow turns as it loads it, and a HEIF, which libheif turns,
    are upright. Raises DamagedImage for what takes too much, and whatever the plug-in raises.
    """
    from PIL import Image

    if kind == "WEBP":
        webp_cost(data).check(max_pixels)
        if is_plain_webp(data):
            return _plain_webp(data)
    if kind == "PNG":
        data = without_text(data)
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


def _plain_webp(data: bytes) -> NDArray[np.uint8]:
    """Decode one opaque image: the same pixels as by Pillow, in half of the memory."""
    import cv2

    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    pixels_HWC = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels_HWC is None:
        raise ValueError("the pixels of this WebP are damaged or cut short")
    return np.asarray(pixels_HWC, np.uint8)


def without_text(png: bytes) -> bytes:
    """Return a PNG without its notes and its colour profile, of which Pillow unpacks 1 MB at most.

    What cannot be followed stays as it is.
    """
    parts, at = [png[:8]], 8
    while at + 8 <= len(png):
        end = at + 12 + int.from_bytes(png[at : at + 4])
        if png[at + 4 : at + 8] not in _PNG_NOTES:
            parts.append(png[at:end])
        at = end
    return b"".join(parts)


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
