"""Bytes to pixels: upright 8-bit RGB, or a reason why not; nothing above a cap is decoded."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray

from skindx.data.magic import picture_suffix

MAX_PIXELS = 50_000_000

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


class DamagedPicture(ValueError):  # noqa: N818
    """These bytes do not become a picture; the message says why."""


def decode(
    data: bytes, *, max_pixels: int = MAX_PIXELS, at_least: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 RGB, turned as EXIF says; alpha is laid on white.

    With `at_least` = (height, width) a larger JPEG may come at a smaller scale of its DCT, no side
    below these: averaged, as by resizing, and for large pictures several times as fast. Its pixels
    then differ by a few levels from those of a resized whole picture.

    A file of several pictures gives its first. JPEG goes through libjpeg-turbo in strict mode,
    which finds damage in mid-stream that Pillow, OpenCV and torchvision let pass. Raises
    DamagedPicture, also above `max_pixels`, which is checked in the header before any pixel is
    decoded.
    """
    suffix = picture_suffix(data[:16])
    if suffix is None:
        raise DamagedPicture("the first bytes are of no picture format that we read")
    try:
        if suffix == ".jpg":
            orientation = _orientation(data)
            if at_least and orientation >= 5:
                at_least = at_least[1], at_least[0]
            pixels_HWC = _decode_jpeg(data, max_pixels, at_least)
        else:
            pixels_HWC = _decode_other(data, max_pixels)
            orientation = _orientation(data)  # may decode: after the cap was checked
    except DamagedPicture:
        raise
    except Exception as error:
        # Decoders meet hostile bytes with every kind of exception (SyntaxError, struct.error,
        # zlib.error …); all of them mean the same to a dataset.
        raise DamagedPicture(" ".join(str(error).split()) or type(error).__name__) from error
    turn = _UPRIGHT.get(orientation)
    return np.ascontiguousarray(turn(pixels_HWC) if turn else pixels_HWC)


def _decode_jpeg(
    data: bytes, max_pixels: int, at_least: tuple[int, int] | None
) -> NDArray[np.uint8]:
    import simplejpeg

    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    _check_size(width, height, max_pixels)
    if colorspace not in ("CMYK", "YCCK"):
        pixels_HWC: NDArray[np.uint8]
        if at_least is None or height <= at_least[0] or width <= at_least[1]:
            pixels_HWC = simplejpeg.decode_jpeg(data, "RGB")
        else:
            # 7/8 and 6/8 would take longer than the whole picture, hence the factor. Where pixels
            # will be averaged, colour need not be smoothed.
            pixels_HWC = simplejpeg.decode_jpeg(
                data,
                "RGB",
                fastupsample=True,
                min_height=at_least[0],
                min_width=at_least[1],
                min_factor=1.5,
            )
        return pixels_HWC
    # libjpeg-turbo has no way from four inks to RGB: it looks for damage, Pillow converts.
    simplejpeg.decode_jpeg(data, "CMYK")
    return _decode_other(data, max_pixels)


def _decode_other(data: bytes, max_pixels: int) -> NDArray[np.uint8]:
    from PIL import Image

    with warnings.catch_warnings():
        # Pillow warns of what we refuse or repair ourselves: bombs, palettes, odd metadata.
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data)) as picture:
            _check_size(*picture.size, max_pixels)
            picture.load()
            return _to_rgb(picture)


def _to_rgb(picture: "Image.Image") -> NDArray[np.uint8]:  # type: ignore[name-defined] # noqa: F821
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


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise DamagedPicture(f"{width} x {height} pixels are more than the cap of {max_pixels}")


def _orientation(data: bytes) -> int:
    try:
        if data[:2] == b"\xff\xd8" and not _has_metadata(data):
            return 1  # nine times as fast as asking Pillow

        from PIL import Image

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as picture:
                return int(picture.getexif().get(274, 1))
    except Exception:
        # Broken metadata beside sound pixels says nothing about which way is up.
        return 1


def _has_metadata(data: bytes) -> bool:
    """Return whether a JPEG has an APP1 segment (Exif, XMP) before its pixels (ITU T.81, B.1)."""
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in (0xE1, 0xDA):
            return marker == 0xE1
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return True  # nothing we know: let Pillow look
