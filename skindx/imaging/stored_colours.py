"""What a file says of its colours: an ICC profile, or codes that become one.

By the bytes of JPEG, PNG, WebP and BMP, each in one pass over their headers, and by what Pillow has
opened of TIFF and HEIF. A PNG is read as browsers do (PNG, third edition, 4.3): cICP counts for
more than iCCP, that for more than sRGB, and gAMA counts only beside cHRM.
"""

import math
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from skindx.imaging.image_formats import MOST_SEGMENTS

if TYPE_CHECKING:
    from mmap import mmap

    from PIL import Image

Decoding = Literal["srgb-1", "as-stored"]
"""Colours of decoded pixels. A dataset and a bundle name theirs; one that names none was made when
profiles were ignored, and its pixels stay as stored."""

SRGB: Decoding = "srgb-1"
AS_STORED: Decoding = "as-stored"

MAX_PROFILE_BYTES = 4 << 20
"""Profiles of cameras and screens have kilobytes, those of presses up to three megabytes."""

ColourNote = Literal["colours-converted", "profile-ignored", "images-left-out"]


@dataclass(frozen=True, slots=True)
class StoredColours:
    """What a file says of its colours; without a profile they are sRGB's."""

    profile: bytes = b""
    broken: bool = False
    """There is a profile that cannot be read, or a code that is not known."""
    more_images: bool = False
    """The file has gain maps, depth or other images beside the photo."""


PLAIN = StoredColours()
_BROKEN = StoredColours(broken=True)


def stored_colours(
    data: "bytes | mmap", kind: str, image: "Image.Image | None" = None
) -> StoredColours:
    """Return what a file of the format `kind`, by Pillow's name, says. Never raises for a file.

    `data` may be mapped memory. `image` is the file as Pillow has opened it, without which a TIFF
    and a HEIF say nothing.
    """
    try:
        if kind in _READERS:
            return _READERS[kind](data)
        return _opened(image) if image is not None else PLAIN
    except (ValueError, IndexError, TypeError, ArithmeticError, struct.error, zlib.error):
        return _BROKEN


_PADDING = re.compile(rb"\xff+")
_ICC, _MPF = b"ICC_PROFILE\0", b"MPF\0"


def _jpeg(data: "bytes | mmap") -> StoredColours:
    """Read each APP2 before the pixels: parts of a profile, and CIPA's list of images."""
    at, parts, more, length = 2, {}, False, len(data)
    for _ in range(MOST_SEGMENTS):
        if at >= length or data[at] != 0xFF:
            break
        if data[at + 1] == 0xFF and (padding := _PADDING.match(data, at)):
            at = padding.end() - 1
        marker = data[at + 1]
        if marker == 0xDA:
            break
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if marker == 0xE2:
            if data[at + 4 : at + 16] == _ICC:
                parts[data[at + 16], data[at + 17]] = data[at + 18 : end]
            more = more or data[at + 4 : at + 8] == _MPF
        at = max(end, at + 4)
    if not parts:
        return StoredColours(more_images=more) if more else PLAIN
    count = next(iter(parts))[1]
    whole = sorted(parts) == [(number, count) for number in range(1, count + 1)]
    profile = b"".join(parts[key] for key in sorted(parts))
    return StoredColours(profile if whole else b"", broken=not whole, more_images=more)


_SRGB_XY = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
_D65 = (0.3127, 0.3290)
_EVEN = 1e-3
"""Tolerance of chromaticities against sRGB's stated ones; that of gamma is ten times as wide."""


def _png(data: "bytes | mmap") -> StoredColours:
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at + 8 <= len(data) and (name := data[at + 4 : at + 8]) != b"IDAT":
        end = at + 8 + int.from_bytes(data[at : at + 4])
        if name in (b"cICP", b"iCCP", b"sRGB", b"gAMA", b"cHRM"):
            chunks.setdefault(name, data[at + 8 : end])
        at = end + 4
    if code := chunks.get(b"cICP"):
        return coded_colours(code[0], code[1])
    if packed := chunks.get(b"iCCP"):
        inflater = zlib.decompressobj()
        profile = inflater.decompress(packed[packed.index(b"\0") + 2 :], MAX_PROFILE_BYTES + 1)
        return StoredColours(profile) if inflater.eof and profile else _BROKEN
    if b"sRGB" in chunks or not {b"gAMA", b"cHRM"} <= chunks.keys():
        return PLAIN
    gamma = struct.unpack(">I", chunks[b"gAMA"])[0] / 1e5
    white_x, white_y, *primaries = (n / 1e5 for n in struct.unpack(">8I", chunks[b"cHRM"]))
    differ = [abs(a - b) for a, b in zip(primaries, _SRGB_XY, strict=True)]
    if abs(gamma - 0.45455) < 10 * _EVEN and max(differ) < _EVEN:
        return PLAIN  # what the standard asks of a writer of sRGB, for readers of before
    return StoredColours(_matrix_profile(tuple(primaries), (white_x, white_y), 1 / gamma))


def _webp(data: "bytes | mmap") -> StoredColours:
    if data[12:16] != b"VP8X" or not data[20] & 0x20:
        return PLAIN
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"ICCP" and size:
            return StoredColours(data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    return _BROKEN


def _bmp(data: "bytes | mmap") -> StoredColours:
    """Read a header of the fifth version, the only one that may embed a profile."""
    if int.from_bytes(data[14:18], "little") < 124 or data[70:74] != b"DEBM":
        return PLAIN
    offset, size = struct.unpack_from("<II", data, 14 + 112)
    return StoredColours(data[14 + offset : 14 + offset + size])


_READERS: dict[str, "Callable[[bytes | mmap], StoredColours]"] = {
    "JPEG": _jpeg,
    "PNG": _png,
    "WEBP": _webp,
    "BMP": _bmp,
}


def _opened(image: "Image.Image") -> StoredColours:
    more = bool(image.info.get("aux") or image.info.get("depth_images"))
    if profile := image.info.get("icc_profile"):
        return StoredColours(bytes(profile), more_images=more)
    if codes := image.info.get("nclx_profile"):
        coded = coded_colours(codes["color_primaries"], codes["transfer_characteristics"])
        return StoredColours(coded.profile, coded.broken, more)
    return StoredColours(more_images=more)


_SMPTE_C = (0.630, 0.340, 0.310, 0.595, 0.155, 0.070)
_P3 = (0.680, 0.320, 0.265, 0.690, 0.150, 0.060)
_PRIMARIES: dict[int, tuple[tuple[float, ...], tuple[float, float]]] = {
    1: (_SRGB_XY, _D65),
    2: (_SRGB_XY, _D65),  # not stated
    5: ((0.64, 0.33, 0.29, 0.60, 0.15, 0.06), _D65),
    6: (_SMPTE_C, _D65),
    7: (_SMPTE_C, _D65),
    9: ((0.708, 0.292, 0.170, 0.797, 0.131, 0.046), _D65),
    11: (_P3, (0.314, 0.351)),
    12: (_P3, _D65),
}
"""ColourPrimaries of ITU-T H.273: x and y of red, green and blue, and of white."""


def _srgb(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


_REFERENCE_WHITE = 203.0
"""Candela a square metre that graphics' white has in HDR (ITU-R BT.2408): brighter is clipped."""


def _pq(value: float) -> float:
    """Return SMPTE ST 2084's luminance, relative to the reference white."""
    root = value ** (32 / 2523)
    ratio = max(0.0, root - 3424 / 4096) / (2413 / 128 - 2392 / 128 * root)
    return float(10_000 * ratio ** (8192 / 1305) / _REFERENCE_WHITE)


def _hlg(value: float) -> float:
    """Return ARIB STD-B67's luminance on a screen of 1,000 cd/m², relative to the same white."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    scene = value * value / 3 if value <= 0.5 else (math.exp((value - c) / a) + b) / 12
    return float(1000 * scene**1.2 / _REFERENCE_WHITE)


Curve = float | Callable[[float], float]
"""Exponent, or function from 0..1 to the linear light."""

_CURVES: dict[int, Curve] = {
    **dict.fromkeys((1, 2, 6, 13, 14, 15), _srgb),  # of cameras: shown as sRGB everywhere
    4: 2.2,
    5: 2.8,
    8: 1.0,
    16: _pq,
    18: _hlg,
}
"""TransferCharacteristics of ITU-T H.273."""


@lru_cache(maxsize=64)
def coded_colours(primaries: int, curve: int) -> StoredColours:
    """Return the colours that codes of ITU-T H.273 name."""
    if primaries not in _PRIMARIES or curve not in _CURVES:
        return _BROKEN
    if _PRIMARIES[primaries][0] is _SRGB_XY and _CURVES[curve] is _srgb:
        return PLAIN
    return StoredColours(_matrix_profile(*_PRIMARIES[primaries], _CURVES[curve]))


_D50 = (0.9642, 1.0, 0.8249)
_STEPS = 4096


@lru_cache(maxsize=64)
def _matrix_profile(
    primaries: tuple[float, ...], white: tuple[float, float], curve: Curve
) -> bytes:
    """Return an ICC profile of RGB (ICC.1:2001-04, 6.3.1.2): three colorants and a curve.

    Raises ValueError for primaries that span no colours.
    """
    import numpy as np

    xy = np.array([*primaries, *white], float).reshape(4, 2)
    if not (np.isfinite(xy).all() and (np.abs(xy) < 2).all() and (xy[:, 1] > 1e-3).all()):
        raise ValueError(f"the chromaticities {xy.tolist()} are not valid")
    xyz_43 = np.stack([xy[:, 0], xy[:, 1], 1 - xy.sum(1)], 1) / xy[:, 1:]
    if abs(np.linalg.det(xyz_43[:3])) < 1e-3:
        raise ValueError("the primaries lie on a line")
    columns_33 = xyz_43[:3].T * np.linalg.solve(xyz_43[:3].T, xyz_43[3])
    # Bradford's cones, by which ICC profiles are adapted to D50.
    cones_33 = np.array(
        [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
    )
    gains_3 = (cones_33 @ np.array(_D50)) / (cones_33 @ xyz_43[3])
    adapted_33 = np.linalg.solve(cones_33, gains_3[:, None] * cones_33) @ columns_33
    if isinstance(curve, float):
        if not 0 < curve < 64:
            raise ValueError(f"the gamma {curve} is not valid")
        coded = _parametric(0, curve)
    elif curve is _srgb:
        coded = _parametric(3, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    else:
        levels = [curve(step / (_STEPS - 1)) for step in range(_STEPS)]
        table = [round(65535 * min(1.0, level)) for level in levels]
        coded = b"curv\0\0\0\0" + struct.pack(f">I{_STEPS}H", _STEPS, *table)
    return _icc_file(adapted_33.T.tolist(), coded)


def _parametric(function: int, *numbers: float) -> bytes:
    """Return a curve by its function (ICC.1:2010, 10.15)."""
    values = b"".join(struct.pack(">i", round(65536 * number)) for number in numbers)
    return struct.pack(">4sIHH", b"para", 0, function, 0) + values


def _icc_file(colorants: Sequence[Sequence[float]], curve: bytes) -> bytes:
    def xyz(values: Sequence[float]) -> bytes:
        return b"XYZ \0\0\0\0" + b"".join(struct.pack(">i", round(65536 * v)) for v in values)

    named = b"desc\0\0\0\0" + struct.pack(">I", 1) + bytes(80)
    values: dict[str, bytes] = {
        "desc": named,
        "wtpt": xyz(_D50),
        **{f"{name}XYZ": xyz(value) for name, value in zip("rgb", colorants, strict=True)},
        **{f"{name}TRC": curve for name in "rgb"},
    }
    table, body, at = b"", b"", 132 + 12 * len(values)
    for name, value in values.items():
        part = value + bytes(-len(value) % 4)
        table += struct.pack(">4sII", name.encode(), at + len(body), len(part))
        body += part
    head = struct.pack(">I4sI4s4s4s", at + len(body), b"", 0x04200000, b"mntr", b"RGB ", b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + xyz(_D50)[8:]
    return head.ljust(128, b"\0") + struct.pack(">I", len(values)) + table + body


def colour_sentences(counts: Mapping[str, int]) -> list[str]:
    """Say what came of the colours of images, given how many have each note."""
    texts: dict[ColourNote, str] = {
        "colours-converted": "Colours converted to sRGB by the profile of the file: {} images.",
        "profile-ignored": "Colour profiles ignored, damaged or of other colours: {} images.",
        "images-left-out": "Files with further images (gain map, depth), left out: {} images.",
    }
    return [text.format(counts[note]) for note, text in texts.items() if counts.get(note)]
