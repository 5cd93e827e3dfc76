"""Bytes to pixels: upright 8-bit sRGB, or a reason why not; nothing above a cap is decoded.

In reading order: `decode`, JPEG, the other formats by Pillow, EXIF's orientation.
"""

import io
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import keep_freed_memory
from skindx.imaging.decode_cost import check_size, is_plain_webp, jpeg_cost, opened_cost, webp_cost
from skindx.imaging.image_formats import (
    HEAD,
    DamagedImage,
    image_suffix,
    read_jpeg,
    refusal,
    unusable,
    without_text,
)
from skindx.imaging.srgb import FileColours, convert_kernel
from skindx.imaging.stored_colours import PLAIN, SRGB, ColourNote, Decoding, stored_colours

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 50_000_000

# The one plug-in of Pillow that may see the bytes; without a list it would try all of them.
FORMATS = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".bmp": "BMP", ".tif": "TIFF"}

# Tags of TIFF: bits of a sample, photometric interpretation (0: white is zero), planes, signedness.
_BITS, _PHOTOMETRIC, _PLANAR, _SAMPLE_FORMAT = 258, 262, 284, 339
_NOTES_BYTES = 1 << 22
"""Bytes at a file's start searched for EXIF: Pillow steps in Python over each non-marker byte."""
_BAND_PIXELS = 1 << 20
"""Pillow's pixels are converted in bands of so many: its own copies would double the memory."""

ROUGH_FACTOR = 2.0
"""A rough JPEG is scaled by a half or less: libjpeg-turbo makes 5/8 in more time than the whole."""
_LEAST_FACTOR = 1.5
"""Others are scaled by 5/8 too, as the figures of bundles were made."""
_ORIENTATION = 274
"""EXIF's tag: how to turn the stored pixels so that up is up."""
_UPRIGHT = {
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x[::-1].swapaxes(0, 1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x.swapaxes(0, 1)[::-1],
}

_lock = threading.Lock()
_inside: list[warnings.catch_warnings] = []
_depth = 0


def decode(
    data: bytes,
    *,
    max_pixels: int = MAX_PIXELS,
    at_least: tuple[int, int] | None = None,
    rough: bool = True,
    decoding: Decoding = SRGB,
) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 sRGB, turned as EXIF says; alpha is laid on white.

    With `at_least` = (height, width) a larger JPEG may come at a smaller scale of its DCT, no side
    below these: averaged, as by resizing, and for large images several times as fast. If `rough`,
    the cosine transform and the colours are then rougher too, which takes 8 % off the time: pixels
    differ by a few levels from those of a resized whole image. For training crops, never for a
    verdict.

    A file of several images gives its first. JPEG goes through libjpeg-turbo in strict mode,
    which finds damage in mid-stream that Pillow, OpenCV and torchvision let pass. Raises
    DamagedImage, also for what would take too many pixels, passes or bytes of memory (see
    `DecodeCost`), which is checked before any pixel is decoded.

    The file's colour profile is applied, but for `as-stored`; one that is broken is ignored.
    """
    return decode_noted(
        data, max_pixels=max_pixels, at_least=at_least, rough=rough, decoding=decoding
    )[0]


def decode_noted(
    data: bytes,
    *,
    max_pixels: int = MAX_PIXELS,
    at_least: tuple[int, int] | None = None,
    rough: bool = True,
    decoding: Decoding = SRGB,
) -> tuple[NDArray[np.uint8], set[ColourNote]]:
    """Return what `decode` does, and what came of the file's colours and further images."""
    suffix = image_suffix(data[:16])
    if suffix is None:
        reason, message = unusable(data[:HEAD])
        raise DamagedImage(message, reason)
    with _refusals():
        if suffix == ".jpg":
            orientation = orientation_of(data, "JPEG")
            if at_least and orientation >= 5:
                at_least = at_least[1], at_least[0]
            # The colours are read from the original file: the repaired one has no profile.
            colours = _colours_of(data, "JPEG", decoding)
            pixels_HWC = read_jpeg(  # the lambda's answer; a file that it refuses is mended first
                data, lambda jpeg: _jpeg(jpeg, max_pixels, at_least, rough, colours)
            )
            notes = colours.notes
        else:
            pixels_HWC, notes = decode_with_pillow(data, FORMATS[suffix], max_pixels, decoding)
            # It may decode, so after the cap. Pillow has turned a TIFF already.
            orientation = 1 if suffix == ".tif" else orientation_of(data, FORMATS[suffix])
        return turned(pixels_HWC, orientation), notes


def decode_stored_jpeg(data: bytes, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Return pixels_HWC of a JPEG, not turned and with its stored colours. Raises DamagedImage."""
    with _refusals():
        plain = FileColours()
        return read_jpeg(data, lambda jpeg: _jpeg(jpeg, max_pixels, None, False, plain))


def decode_small(data: bytes, side: int, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Return grey_HW, upright, of a JPEG at the smallest scale with no side shorter than `side`.

    libjpeg-turbo scales in the cosine domain, by up to 8, and leaves the colours out; what is no
    JPEG, or shorter than `side`, comes at full size. Raises DamagedImage.
    """
    import cv2

    with _refusals():
        if image_suffix(data[:16]) == ".jpg":
            colours = _colours_of(data, "JPEG")
            small_HW = read_jpeg(data, lambda jpeg: _small_grey(jpeg, side, max_pixels, colours))
            if small_HW is not None:
                return turned(small_HW, orientation_of(data, "JPEG"))
        grey_HW: NDArray[np.uint8] = cv2.cvtColor(
            decode(data, max_pixels=max_pixels), cv2.COLOR_RGB2GRAY
        )
        return grey_HW


def upright_jpeg_size(data: bytes) -> tuple[int, int]:
    """Return (height, width) of a JPEG at full scale, by its header. Raises DamagedImage."""
    import simplejpeg

    with _refusals():
        height, width, _, _ = read_jpeg(data, simplejpeg.decode_jpeg_header)
    return (width, height) if orientation_of(data, "JPEG") >= 5 else (height, width)


def import_decoders() -> None:
    """Import all that decoding needs: a sandboxed process could not, once its memory is limited."""
    import cv2
    import simplejpeg  # noqa: F401
    from PIL import Image, ImageCms  # noqa: F401

    Image.preinit()
    convert_kernel()
    cv2.setNumThreads(1)  # the processes are the threads
    keep_freed_memory(large=False)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise DamagedImage for whatever a decoder raises."""
    try:
        yield
    except DamagedImage:
        raise
    except Exception as error:
        raise refusal(error) from error


def _jpeg(
    data: bytes,
    max_pixels: int,
    at_least: tuple[int, int] | None,
    rough: bool,
    colours: FileColours,
) -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 sRGB, not turned. Raises DamagedImage, and what decoders raise."""
    import simplejpeg

    height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(data)
    scale, scaled = {}, None
    if at_least:
        sides = {"min_height": at_least[0], "min_width": at_least[1]}
        scale = sides | {"min_factor": ROUGH_FACTOR if rough else _LEAST_FACTOR}
        scaled = simplejpeg.decode_jpeg_header(data, **scale)[:2]
    jpeg_cost(data, width, height, colorspace, subsampling, scaled=scaled).check(max_pixels)
    if colorspace not in ("CMYK", "YCCK"):
        fast = rough and at_least is not None
        pixels_HWC: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data, "RGB", fastdct=fast, fastupsample=fast, **scale
        )
        grey = colorspace == "Gray" and colours.there
        return colours.grey(pixels_HWC[:, :, 0]) if grey else colours.rgb(pixels_HWC)
    # libjpeg-turbo has no way from four inks to RGB: it looks for damage, Pillow converts.
    simplejpeg.decode_jpeg(data, "CMYK")
    with _opened(data, "JPEG", max_pixels) as image:
        check_size(*image.size, max_pixels)
        image.load()
        return _pixels_of(image, {}, colours)


def _colours_of(
    data: bytes, kind: str, decoding: Decoding = SRGB, image: "Image.Image | None" = None
) -> FileColours:
    return FileColours(stored_colours(data, kind, image) if decoding == SRGB else PLAIN)


def _small_grey(
    jpeg: bytes, side: int, max_pixels: int, colours: FileColours
) -> NDArray[np.uint8] | None:
    """Return grey_HW, not turned; None for colours that libjpeg-turbo does not turn into grey."""
    import cv2
    import simplejpeg

    height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(jpeg)
    jpeg_cost(jpeg, width, height, colorspace, subsampling).check(max_pixels)
    if colorspace not in ("YCbCr", "Gray"):
        return None
    sides = {"min_height": min(side, height), "min_width": min(side, width)}
    if colours.there and colorspace != "Gray":
        small_HWC = colours.rgb(simplejpeg.decode_jpeg(jpeg, "RGB", **sides))
        return np.asarray(cv2.cvtColor(small_HWC, cv2.COLOR_RGB2GRAY), np.uint8)
    small_HW: NDArray[np.uint8] = simplejpeg.decode_jpeg(jpeg, "GRAY", **sides)[:, :, 0]
    return colours.grey(small_HW)[:, :, 0] if colours.there else small_HW


def decode_with_pillow(
    data: bytes, kind: str, max_pixels: int, decoding: Decoding = SRGB
) -> tuple[NDArray[np.uint8], set[ColourNote]]:
    """Return pixels_HWC, uint8 sRGB, by the one plug-in of Pillow that `kind` names, and notes.

    They are not turned; a TIFF, which Pillow turns as it loads it, and a HEIF, which libheif turns,
    are upright. Raises DamagedImage for what takes too much, and whatever the plug-in raises.
    """
    if kind == "WEBP":
        webp_cost(data).check(max_pixels)
        if is_plain_webp(data):
            colours = _colours_of(data, kind, decoding)
            return colours.rgb(_plain_webp(data)), colours.notes
    readable = without_text(data) if kind == "PNG" else data
    with _opened(readable, kind, max_pixels) as image:
        if kind != "WEBP":
            opened_cost(image, readable).check(max_pixels)
        colours = _colours_of(data, kind, decoding, image)
        tags = load_pixels(image)
        return _pixels_of(image, tags, colours), colours.notes


@contextmanager
def _opened(data: bytes, kind: str, max_pixels: int) -> "Iterator[Image.Image]":
    from PIL import Image

    # Pillow warns of what we refuse or repair ourselves: bombs, palettes, odd metadata.
    with ignore_warnings():
        try:
            opened = Image.open(io.BytesIO(data), formats=(kind,))
        except Image.DecompressionBombError:
            message = f"it has more pixels than the cap of {max_pixels}"
            raise DamagedImage(message, "too-many-pixels") from None
        with opened as image:
            yield image


def pixels_of_opened(image: "Image.Image") -> NDArray[np.uint8]:
    """Return pixels_HWC, uint8 sRGB, upright, of an image that a program has opened with Pillow."""
    with ignore_warnings():
        tags = load_pixels(image)
        pixels_HWC = _pixels_of(image, tags, FileColours(stored_colours(b"", "", image)))
        return turned(pixels_HWC, exif_orientation(image))


def _pixels_of(
    image: "Image.Image", tags: Mapping[int, Any], colours: FileColours
) -> NDArray[np.uint8]:
    """Return pixels_HWC of a loaded image, whose tags are those of `load_pixels`."""
    width, height = image.size
    pixels_HWC = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        pixels_HWC[top : top + rows] = _to_rgb(band, tags, colours)
    return pixels_HWC


def load_pixels(image: "Image.Image") -> Mapping[int, Any]:
    """Load an image's pixels; return the tags of a TIFF, {} of others.

    Pillow turns a TIFF as it loads it, here not by XMP alone, and takes planes of 16 bits for
    planes of 8, here not.
    """
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {})
    if tags:
        image.info.pop("xmp", None)
    if tags.get(_PLANAR) == 2 and max(tags.get(_BITS, (1,))) == 16:
        opened: Any = image
        order = "L" if opened.tag_v2.prefix == b"II" else "B"
        opened.tile = [
            tile._replace(args=(f"{tile.args[0]};16{order}", *tile.args[1:]))
            if tile.codec_name == "raw"
            else tile
            for tile in opened.tile
        ]
    image.load()
    return tags


def _plain_webp(data: bytes) -> NDArray[np.uint8]:
    """Decode one opaque image: the same pixels as by Pillow, in half of the memory."""
    import cv2

    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    pixels_HWC = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels_HWC is None:
        raise ValueError("the pixels of this WebP are damaged or cut short")
    return np.asarray(pixels_HWC, np.uint8)


def _to_rgb(
    image: "Image.Image", tags: Mapping[int, Any], colours: FileColours
) -> NDArray[np.uint8]:
    from PIL import Image

    if image.mode == "F":
        raise DamagedImage("the image has floating-point pixels without a known white level")
    if image.mode.startswith("I"):
        return colours.grey(_deep_grey(image, tags))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        if colours.there:
            alpha = rgba.getchannel("A")
            opaque = rgba.getchannel("R") if image.mode in ("LA", "La") else rgba.convert("RGB")
            rgba = Image.fromarray(_to_rgb(opaque, tags, colours))
            rgba.putalpha(alpha)
        white = Image.new("RGBA", rgba.size, "white")
        return np.asarray(Image.alpha_composite(white, rgba).convert("RGB"))
    if image.mode == "CMYK":
        return colours.inks(image)
    if colours.there and image.mode in ("1", "L"):
        return colours.grey(np.asarray(image.convert("L")))
    rgb_HWC = np.asarray(image.convert("RGB"))
    return rgb_HWC if image.mode == "LAB" else colours.rgb(rgb_HWC)


def _deep_grey(image: "Image.Image", tags: Mapping[int, Any]) -> NDArray[np.uint8]:
    """Return grey_HW of 12, 16 or 32 bits; the largest number is white, or black as a TIFF says.

    Pillow's own conversion clips at 255, and knows an inverted scale of 8 bits alone.
    """
    bits, signed = max(tags.get(_BITS, (16,))), tags.get(_SAMPLE_FORMAT, (1,))[0] == 2
    deep_HW = np.asarray(image).astype(np.int64)
    if bits == 32 and not signed:
        deep_HW &= 0xFFFFFFFF
    grey_HW: NDArray[np.uint8] = np.clip(deep_HW >> (bits - 8 - signed), 0, 255).astype(np.uint8)
    return 255 - grey_HW if tags.get(_PHOTOMETRIC) == 0 else grey_HW


def turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    turn = _UPRIGHT.get(orientation)
    return np.ascontiguousarray(turn(pixels) if turn else pixels)


def orientation_of(data: bytes, kind: str) -> int:
    """Return EXIF's orientation, 1..8; 1 (upright) where nothing says otherwise."""
    if kind == "JPEG":
        if not has_metadata(data):
            return 1  # nine times as fast as asking Pillow
        data = data[:_NOTES_BYTES]
    from PIL import Image

    # Broken metadata beside sound pixels says nothing about which way is up; long notes may hide
    # what does: then a PNG is asked once more without them.
    for readable in (data, without_text(data)) if kind == "PNG" else (data,):
        with (
            suppress(Exception),
            ignore_warnings(),
            Image.open(io.BytesIO(readable), formats=(kind,)) as image,
        ):
            return exif_orientation(image)
    return 1


def exif_orientation(image: "Image.Image") -> int:
    """Return EXIF's orientation of an opened image; 1 where nothing says otherwise.

    One in XMP alone is not obeyed, as in browsers; Pillow's `getexif` obeys it.
    """
    from PIL import Image

    if tags := getattr(image, "tag_v2", None):
        return int(tags.get(_ORIENTATION, 1))
    plain = Image.new("1", (1, 1))
    kept = ("exif", "Raw profile type exif")
    plain.info = {name: image.info[name] for name in kept if name in image.info}
    return int(plain.getexif().get(_ORIENTATION, 1))


def has_metadata(jpeg: bytes) -> bool:
    """Tell whether an APP1 segment, which alone holds EXIF, may stand before the pixels."""
    at, length = 2, len(jpeg) - 1
    while at < length and jpeg[at] == 0xFF:
        marker = jpeg[at + 1]
        if marker == 0xDA:  # the pixels begin
            return False
        if marker == 0xE1:
            return True
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    return True  # unusual, so let Pillow look


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore warnings while any thread is inside.

    `warnings.catch_warnings` alone puts back what another thread had set; here the first one in
    saves the filters and the last one out restores them.
    """
    global _depth  # noqa: PLW0603 (the filters that it counts for are global too)
    with _lock:
        if _depth == 0:
            _inside.append(warnings.catch_warnings())
            _inside[0].__enter__()
            warnings.simplefilter("ignore")
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _inside.pop().__exit__(None, None, None)
