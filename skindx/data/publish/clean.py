"""One stored image becomes what others get: upright, sRGB, and nothing but pixels."""

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.data.publish.colour import to_srgb
from skindx.data.publish.jpeg import NotStrippable, strip_jpeg
from skindx.imaging.decode import MAX_PIXELS, decode
from skindx.imaging.formats import DamagedImage, image_suffix

JPEG_QUALITY = 95
"""Of the few images that must be coded again; without chroma subsampling."""


@dataclass(frozen=True, slots=True)
class CleanImage:
    """Bytes to give away; `reencoded` if their pixels are not exactly those of the original."""

    data: bytes
    suffix: str
    width: int
    height: int
    reencoded: bool


def clean_image(data: bytes, *, max_pixels: int = MAX_PIXELS) -> CleanImage:
    """Strip an image of everything but its pixels, losing none where that is possible.

    JPEG and lossy WebP keep their coded data to the bit; whether the stripped file still decodes
    to the same upright pixels is tried, not assumed. So an image that only metadata turns (EXIF
    orientation), one of four colours and one of wide colours is coded once more. All other
    formats become PNG of exactly the decoded pixels. Raises DamagedImage.
    """
    pixels_HWC = decode(data, max_pixels=max_pixels)
    height, width = pixels_HWC.shape[:2]
    suffix = image_suffix(data[:16])
    srgb_HWC = to_srgb(pixels_HWC, data)
    if srgb_HWC is None:
        stripped = _stripped(data, suffix)
        if stripped and _decodes_to(stripped, pixels_HWC, max_pixels):
            return CleanImage(stripped, suffix or "", width, height, reencoded=False)
    else:
        pixels_HWC = srgb_HWC
    if suffix == ".jpg":
        coded = _encode(pixels_HWC, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        return CleanImage(coded, ".jpg", width, height, reencoded=True)
    coded = _encode(pixels_HWC, "PNG", optimize=False)
    return CleanImage(coded, ".png", width, height, reencoded=srgb_HWC is not None)


def _stripped(data: bytes, suffix: str | None) -> bytes | None:
    """Return the coded image alone, None for a format that is decoded instead."""
    try:
        if suffix == ".jpg":
            return strip_jpeg(data)
        if suffix == ".webp":
            return _strip_webp(data)
    except NotStrippable:
        return None
    return None


def _strip_webp(data: bytes) -> bytes:
    """Return a lossy, opaque, still WebP as its one coded chunk. Raises NotStrippable."""
    end = 8 + int.from_bytes(data[4:8], "little")
    coded, at = [], 12
    while at + 8 <= min(end, len(data)):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name in (b"VP8L", b"ALPH", b"ANIM", b"ANMF"):
            raise NotStrippable("it is lossless, transparent or moving")
        if name == b"VP8 ":
            coded.append(data[at : at + 8 + size] + b"\0" * (size % 2))
        at += 8 + size + size % 2
    if len(coded) != 1:
        raise NotStrippable("it does not hold exactly one image")
    return b"RIFF" + (4 + len(coded[0])).to_bytes(4, "little") + b"WEBP" + coded[0]


def _decodes_to(data: bytes, pixels_HWC: NDArray[np.uint8], max_pixels: int) -> bool:
    try:
        return bool(np.array_equal(decode(data, max_pixels=max_pixels), pixels_HWC))
    except DamagedImage:
        return False


def _encode(pixels_HWC: NDArray[np.uint8], kind: str, **options: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels_HWC).save(buffer, kind, **options)
    return buffer.getvalue()
