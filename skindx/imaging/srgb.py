"""Decoded colours to sRGB: relative colorimetric, with black point compensation, 8 bits.

LittleCMS decides every colour. It takes six times as long as decoding, so a profile of three curves
and a matrix, as those of cameras and screens are, goes through tables of our own where these are
within one level of LittleCMS on a grid of colours. Profiles are hostile: one that is too large, is
of other colours than the pixels, or that LittleCMS does not read is ignored.
"""

import ctypes
import io
import struct
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skindx.core.compiled_loops import CppSource
from skindx.imaging.stored_colours import MAX_PROFILE_BYTES, PLAIN, ColourNote, StoredColours

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]
Space = Literal["RGB", "L", "CMYK"]
"""Colour space of the pixels, named by Pillow's mode."""

_SAME = 1
"""Most levels of 255 by which the same colours, written in two ways, may differ."""
_BAND_PIXELS = 1 << 20
_HEADER = 132
_CLASSES = (b"scnr", b"mntr", b"prtr", b"spac")
_SPACES: dict[bytes, Space] = {b"RGB ": "RGB", b"GRAY": "L", b"CMYK": "CMYK"}
_SLOW = (b"D2B0", b"D2B1", b"D2B2", b"D2B3", b"B2D0", b"B2D1", b"B2D2", b"B2D3")
"""Tags with chains of any length, for which a few megabytes may ask for minutes; a profile has
tables as well."""
_TABLES = (b"A2B0", b"A2B1", b"A2B2")


class FileColours:
    """The colours of one file: turns its pixels into sRGB's, and notes what came of them."""

    def __init__(self, stored: StoredColours = PLAIN) -> None:
        self._profile = stored.profile
        self.notes: set[ColourNote] = set()
        if stored.broken:
            self.notes.add("profile-ignored")
        if stored.more_images:
            self.notes.add("images-left-out")

    @property
    def there(self) -> bool:
        return bool(self._profile)

    @property
    def change_rgb(self) -> bool:
        """Tell whether pixels of RGB will change."""
        return self._conversion("RGB") is not None

    def _conversion(self, space: Space) -> "Callable[[Any], Pixels] | None":
        if not self._profile:
            return None
        found = conversion(self._profile, space)
        if found.convert or found.ignored:
            self.notes.add("profile-ignored" if found.ignored else "colours-converted")
        return found.convert

    def rgb(self, pixels_HWC: Pixels) -> Pixels:
        """Return pixels of RGB; those that are given may be changed, or not."""
        convert = self._conversion("RGB")
        return convert(pixels_HWC) if convert else pixels_HWC

    def grey(self, grey_HW: Pixels) -> Pixels:
        """Return pixels_HWC of shades of grey."""
        convert = self._conversion("L")
        return convert(grey_HW) if convert else np.repeat(grey_HW[:, :, None], 3, axis=2)

    def inks(self, image: "Image.Image") -> Pixels:
        """Return pixels_HWC of an image of four inks."""
        convert = self._conversion("CMYK")
        return convert(image) if convert else np.asarray(image.convert("RGB"))


@dataclass(frozen=True)
class Conversion:
    """What a profile does to pixels."""

    convert: "Callable[[Any], Pixels] | None" = field(default=None)
    """Conversion of pixels to sRGB; None: they are sRGB already, or the profile is ignored."""
    ignored: bool = False


@lru_cache(maxsize=32)
def conversion(profile: bytes, space: Space) -> Conversion:
    """Return what a profile does to pixels of a space; whatever it holds, it never raises."""
    if not _is_usable(profile, space):
        return Conversion(ignored=True)
    # Pillow and LittleCMS meet hostile bytes with every kind of exception.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _conversion(_without_slow_tags(profile), space)
        except Exception:
            return Conversion(ignored=True)


def _is_usable(profile: bytes, space: Space) -> bool:
    """Tell by its header whether a profile is one of a device with these colours."""
    if not _HEADER < len(profile) <= MAX_PROFILE_BYTES or profile[36:40] != b"acsp":
        return False
    of = _SPACES.get(profile[16:20])
    return profile[12:16] in _CLASSES and (of == space or (space == "L" and of == "RGB"))


def _tags(profile: bytes) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield the place of each entry of the table of tags, and name, offset and size of its tag."""
    for at in range(_HEADER, _HEADER + 12 * int.from_bytes(profile[128:132]), 12):
        if at + 12 > len(profile):
            return
        name, offset, size = struct.unpack_from(">4sII", profile, at)
        yield at, name, offset, size


def _without_slow_tags(profile: bytes) -> bytes:
    changed = bytearray(profile)
    for at, name, _, _ in _tags(profile):
        if name in _SLOW:
            changed[at : at + 4] = b"none"
    return bytes(changed)


def _conversion(profile: bytes, space: Space) -> Conversion:
    from PIL import Image, ImageCms

    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    by_grey = space == "L" and profile[16:20] == b"GRAY"
    mode = "L" if by_grey else "RGB" if space == "L" else space
    transform = ImageCms.buildTransform(
        source,
        ImageCms.createProfile("sRGB"),
        mode,
        "RGB",
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )

    def by_littlecms(image: "Image.Image") -> Pixels:
        return np.asarray(transform.apply(image))

    if space == "L":
        ramp_HW = np.arange(256, dtype=np.uint8)[None]
        ramp = Image.fromarray(ramp_HW)
        table_13 = by_littlecms(ramp if by_grey else ramp.convert("RGB"))
        if np.abs(table_13.astype(int) - ramp_HW[..., None]).max() <= _SAME:
            return Conversion()
        return Conversion(lambda grey_HW: table_13[0][grey_HW])
    if space == "CMYK":
        return Conversion(by_littlecms)
    grid_HWC = _grid()
    right_HWC = by_littlecms(Image.fromarray(grid_HWC)).astype(int)
    if np.abs(right_HWC - grid_HWC).max() <= _SAME:
        return Conversion()
    if tables := _matrix_tables(profile, source):
        by_tables = _by_tables(*tables)
        if np.abs(by_tables(grid_HWC.copy()) - right_HWC).max() <= _SAME:
            return Conversion(by_tables)

    def in_bands(pixels_HWC: Pixels) -> Pixels:
        pixels_HWC = np.require(pixels_HWC, requirements=["C", "W"])
        rows = max(1, _BAND_PIXELS // pixels_HWC.shape[1])
        for top in range(0, len(pixels_HWC), rows):
            band_HWC = pixels_HWC[top : top + rows]
            band_HWC[...] = by_littlecms(Image.fromarray(band_HWC))
        return pixels_HWC

    return Conversion(in_bands)


@cache
def _grid() -> Pixels:
    """Return colours to try, as an image: 17 levels a channel, and every grey."""
    levels = np.linspace(0, 255, 17).round().astype(np.uint8)
    cube_N3 = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
    greys_N3 = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    return np.concatenate([cube_N3, greys_N3])[None]


_SHIFT, _LAST = 13, 1 << 14
"""Same as in `matrix_colours.cpp`: full light is _LAST << _SHIFT; the curve has _LAST steps."""
_MOST = 4.0
"""Light that one channel may add; three of them are below the largest whole number."""

SOURCE = CppSource(
    Path(__file__).with_name("matrix_colours.cpp"),
    "colours of photos to sRGB",
    "NumPy converts the colours of photos, in ten times the time",
)


def _matrix_tables(profile: bytes, source: Any) -> tuple[NDArray[np.int32], Pixels] | None:
    """Return what `convert` takes, of a profile of curves and a matrix; None for another."""
    from PIL import ImageCms

    tags = {name: profile[offset : offset + size] for _, name, offset, size in _tags(profile)}
    curves = [_curve(tags.get(name, b"")) for name in (b"rTRC", b"gTRC", b"bTRC")]
    if any(curve is None for curve in curves) or not tags.keys().isdisjoint(_TABLES):
        return None
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    of_source, of_srgb = (
        np.array([getattr(one.profile, f"{name}_colorant")[0] for name in ("red", "green", "blue")])
        for one in (source, srgb)
    )
    matrix_33 = np.linalg.solve(of_srgb.T, of_source.T)
    light_C256 = np.array(curves)
    columns_C256R = np.zeros((3, 256, 4))
    columns_C256R[..., :3] = light_C256[:, :, None] * matrix_33.T[:, None]
    if not np.abs(columns_C256R).max() <= _MOST:
        return None
    columns = np.rint(columns_C256R * (_LAST << _SHIFT)).astype(np.int32)
    columns[0] += 1 << (_SHIFT - 1)  # to round
    steps = np.arange(_LAST + 1) / _LAST
    curve = np.where(steps <= 0.0031308, 12.92 * steps, 1.055 * steps ** (1 / 2.4) - 0.055)
    return columns, np.rint(255 * curve).astype(np.uint8)


def _curve(tag: bytes) -> NDArray[np.float64] | None:
    """Return the light of 256 levels (ICC.1:2010, 10.5 and 10.15); None for what is no curve."""
    levels = np.linspace(0, 1, 256)
    kind, count = tag[:4], int.from_bytes(tag[8:12])
    if kind == b"curv" and 12 + 2 * count <= len(tag):
        numbers = np.frombuffer(tag, ">u2", count, 12)
        if count == 0:
            return levels
        if count == 1:
            light: NDArray[np.float64] = levels ** (numbers[0] / 256)
            return light
        return np.interp(levels, np.linspace(0, 1, count), numbers / 65535)
    if kind != b"para" or (function := count >> 16) > 4:
        return None
    size = (1, 3, 4, 5, 7)[function]
    g, a, b, c, d, e, f = (*(np.frombuffer(tag, ">i4", size, 12) / 65536), *(0.0,) * 6)[:7]
    if function == 0:
        return np.asarray(levels**g)
    if function < 3:
        c, d, e, f = 0.0, -b / a, c, c
    powers = np.maximum(0, a * levels + b) ** g + e
    return np.asarray(np.where(levels >= d, powers, c * levels + f))


def _by_tables(columns: NDArray[np.int32], curve: Pixels) -> Callable[[Pixels], Pixels]:
    kernel = convert_kernel()

    def convert(pixels_HWC: Pixels) -> Pixels:
        pixels_HWC = np.require(pixels_HWC, requirements=["C", "W"])
        if kernel is None:
            _by_numpy(pixels_HWC.reshape(-1, 3), columns, curve)
        else:
            arrays = (columns.ctypes.data, curve.ctypes.data)
            kernel.convert(pixels_HWC.ctypes.data, pixels_HWC.size // 3, *arrays)
        return pixels_HWC

    return convert


def _by_numpy(pixels_N3: Pixels, columns: NDArray[np.int32], curve: Pixels) -> None:
    for first in range(0, len(pixels_N3), _BAND_PIXELS):
        band_N3 = pixels_N3[first : first + _BAND_PIXELS]
        red, green, blue = (columns[channel, :, :3][band_N3[:, channel]] for channel in range(3))
        red += green
        red += blue
        red >>= _SHIFT
        band_N3[...] = curve[np.clip(red, 0, _LAST)]


@cache
def convert_kernel() -> ctypes.CDLL | None:
    """Return the compiled loop; None where NumPy does its work."""
    kernel = SOURCE.kernel()
    if kernel is None:
        return None
    pointer = ctypes.c_void_p
    kernel.library.convert.argtypes = (pointer, ctypes.c_int64, pointer, pointer)
    kernel.library.convert.restype = None
    return kernel.library
