"""Bytes to pixels: upright 8-bit RGB, or a reason why not; nothing above a cap is decoded."""

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.cost import check_size, jpeg_cost, opened_cost, webp_cost
from skindx.imaging.damage import DamagedPicture
from skindx.imaging.formats import HEAD, picture_suffix, unusable
from skindx.imaging.silence import hushed

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["MAX_PIXELS", "DamagedPicture", "decode", "decode_small", "refusal"]

MAX_PIXELS = 50_000_000

_BAND_PIXELS = 1 << 20
"""Pillow's pixels are converted in bands of so many: its own copies would double the memory."""

# EXIF tag 274 (Orientation): how to turn the stored pixels so that up is up.
_UPRIGHT = {
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x[::-1].swapaxes(0, 1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x.swapaxes(0, 1)[::-1],
}

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
    below these: averaged, as by resizing, and for large pictures several times as fast. If `rough`,
    the cosine transform and the colours are then rougher too, which takes 8 % off the time: pixels
    differ by a few levels from those of a resized whole picture. For training crops, never for a
    verdict.

    A file of several pictures gives its first. JPEG goes through libjpeg-turbo in strict mode,
    which finds damage in mid-stream that Pillow, OpenCV and torchvision let pass. Raises
    DamagedPicture, also for what would take too many pixels, passes or bytes of memory (see
    `Cost`), which is checked before any pixel is decoded.
    """
    suffix = picture_suffix(data[:16])
    if suffix is None:
        reason, message = unusable(data[:HEAD])
        raise DamagedPicture(message, reason)
    try:
        if suffix == ".jpg":
            orientation = _orientation(data, "JPEG")
            if at_least and orientation >= 5:
                at_least = at_least[1], at_least[0]
            pixels_HWC = _decode_jpeg(data, max_pixels, at_least, rough)
        else:
            pixels_HWC = decode_with_pillow(data, FORMATS[suffix], max_pixels)
            orientation = _orientation(data, FORMATS[suffix])  # may decode: after the cap
        return _turned(pixels_HWC, orientation)
    except DamagedPicture:
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


def upright_jpeg_size(data: bytes) -> tuple[int, int]:
    """Return (height, width) of a JPEG at full scale, by its header. Raises DamagedPicture."""
    import simplejpeg

    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    except Exception as error:
        raise refusal(error) from error
    return (width, height) if _orientation(data, "JPEG") >= 5 else (height, width)


def decode_small(data: bytes, side: int, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Return grey_HW, upright, of a JPEG at the smallest scale with no side shorter than `side`.

    libjpeg-turbo scales in the cosine domain, by up to 8, and leaves the colours out; what is no
    JPEG, or shorter than `side`, comes at full size. Raises DamagedPicture.
    """
    import cv2
    import simplejpeg

    try:
        if picture_suffix(data[:16]) == ".jpg":
            height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(data)
            jpeg_cost(data, width, height, colorspace, subsampling).check(max_pixels)
            if colorspace in ("YCbCr", "Gray"):
                sides = {"min_height": min(side, height), "min_width": min(side, width)}
                small_HW = simplejpeg.decode_jpeg(data, "GRAY", **sides)[:, :, 0]
                return _turned(small_HW, _orientation(data, "JPEG"))
        grey_HW: NDArray[np.uint8] = cv2.cvtColor(
            decode(data, max_pixels=max_pixels), cv2.COLOR_RGB2GRAY
        )
        return grey_HW
    except DamagedPicture:
        raise
    except Exception as error:
        raise refusal(error) from error


def _turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    turn = _UPRIGHT.get(orientation)
    return np.ascontiguousarray(turn(pixels) if turn else pixels)


def refusal(error: Exception) -> DamagedPicture:
    """Return what an exception from a decoder means.

    Hostile bytes raise every kind (SyntaxError, struct.error, zlib.error …); all of them mean the
    same to a dataset, but for a lack of memory.
    """
    if isinstance(error, DamagedPicture):
        return error
    message = " ".join(str(error).split()) or type(error).__name__
    short = isinstance(error, MemoryError) or "memory" in message.lower()
    return DamagedPicture(message, "decode-memory" if short else "damaged")


def _decode_jpeg(
    data: bytes, max_pixels: int, at_least: tuple[int, int] | None, rough: bool
) -> NDArray[np.uint8]:
    import simplejpeg

    height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(data)
    jpeg_cost(data, width, height, colorspace, subsampling).check(max_pixels)
    if colorspace not in ("CMYK", "YCCK"):
        # 7/8 and 6/8 would take longer than the whole picture.
        smaller = {"min_height": at_least[0], "min_width": at_least[1]} if at_least else {}
        pixels_HWC: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data,
            "RGB",
            min_factor=1.5 if at_least else 1,
            fastdct=rough and at_least is not None,
            fastupsample=rough and at_least is not None,
            **smaller,
        )
        return pixels_HWC
    # libjpeg-turbo has no way from four inks to RGB: it looks for damage, Pillow converts.
    simplejpeg.decode_jpeg(data, "CMYK")
    return decode_with_pillow(data, "JPEG", max_pixels)


def decode_with_pillow(data: bytes, kind: str, max_pixels: int) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 RGB, as stored, by the one plug-in of Pillow that `kind` names.

    Raises DamagedPicture for what takes too much, and whatever the plug-in raises.
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
            raise DamagedPicture(message, "too-many-pixels") from None
        with opened as picture:
            if kind == "JPEG":
                check_size(*picture.size, max_pixels)
            elif kind != "WEBP":
                opened_cost(picture, data).check(max_pixels)
            picture.load()
            width, height = picture.size
            pixels_HWC = np.empty((height, width, 3), np.uint8)
            rows = max(1, _BAND_PIXELS // width)
            for top in range(0, height, rows):
                band = picture.crop((0, top, width, min(top + rows, height)))
                pixels_HWC[top : top + rows] = _to_rgb(band)
            return pixels_HWC


def _to_rgb(picture: "Image.Image") -> NDArray[np.uint8]:
    from PIL import Image

    if picture.mode == "F":
        raise DamagedPicture("floating-point pixels have no known white")
    if picture.mode.startswith("I"):
        # 16-bit grey; Pillow's own conversion clips at 255 instead of scaling.
        deep_HW = np.asarray(picture).astype(np.int64)
        grey_HW = np.clip(deep_HW >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey_HW[:, :, None], 3, axis=2)
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        picture = Image.alpha_composite(white, rgba)
    return np.asarray(picture.convert("RGB"))


def _orientation(data: bytes, kind: str) -> int:
    from PIL import Image

    if kind == "JPEG" and not has_metadata(data):
        return 1  # nine times as fast as asking Pillow
    try:
        with hushed(), Image.open(io.BytesIO(data), formats=(kind,)) as picture:
            return int(picture.getexif().get(274, 1))
    except Exception:
        # Broken metadata beside sound pixels says nothing about which way is up.
        return 1


def has_metadata(jpeg: bytes) -> bool:
    """Tell whether an APP1 segment, which alone holds EXIF or XMP, may stand before the pixels."""
    at = 2
    while jpeg[at : at + 1] == b"\xff":
        marker = jpeg[at + 1 : at + 2]
        if marker == b"\xda":  # the pixels begin
            return False
        if marker == b"\xe1":
            return True
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    return True  # unusual, so let Pillow look
