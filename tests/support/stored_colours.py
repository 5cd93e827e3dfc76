"""Files that say of their colours: profiles made by hand, and what holds them."""

import io
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from hostile_images import png_chunk
from numpy.typing import NDArray
from PIL import Image

# D50 colorants of red, green and blue, as in the profiles of Apple and Adobe.
P3_XYZ = ((0.51512, 0.2412, -0.00105), (0.29198, 0.69225, 0.04189), (0.1571, 0.06657, 0.78407))
ADOBE_XYZ = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))
SRGB_XYZ = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.7141))


def gamma(exponent: float) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(exponent * 256)) + b"\0\0"


def srgb_curve() -> bytes:
    """Return sRGB's curve as function 3 of ICC.1:2010, 10.15, which Apple's profiles have."""
    numbers = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    return b"para\0\0\0\0\0\3\0\0" + b"".join(struct.pack(">i", round(n * 65536)) for n in numbers)


def profile(tags: Mapping[bytes, bytes], space: bytes = b"RGB ", kind: bytes = b"mntr") -> bytes:
    """Return an ICC profile of a version that has these tags."""
    at, table, body = 132 + 12 * len(tags), b"", b""
    for name, value in tags.items():
        table += struct.pack(">4sII", name, at + len(body), len(value))
        body += value + bytes(-len(value) % 4)
    head = struct.pack(">I4sI4s4s4s", at + len(body), b"test", 0x02400000, kind, space, b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + xyz((0.9642, 1, 0.8249))[8:]
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


def xyz(values: Sequence[float]) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(struct.pack(">i", round(v * 65536)) for v in values)


def matrix_profile(colorants: Sequence[Sequence[float]], curve: bytes) -> bytes:
    tags = {b"wtpt": xyz((0.9642, 1, 0.8249))}
    tags |= {bytes([name]) + b"XYZ": xyz(of) for name, of in zip(b"rgb", colorants, strict=True)}
    return profile(tags | {bytes([name]) + b"TRC": curve for name in b"rgb"})


P3 = matrix_profile(P3_XYZ, srgb_curve())
ADOBE = matrix_profile(ADOBE_XYZ, gamma(563 / 256))
GREY_18 = profile({b"wtpt": xyz((0.9642, 1, 0.8249)), b"kTRC": gamma(1.8)}, b"GRAY")


def inks_profile() -> bytes:
    """Return a profile of CMYK whose table of two levels an ink is the Lab of a simple press."""
    corners = np.stack(np.meshgrid(*[[0, 1]] * 4, indexing="ij"), -1).reshape(-1, 4)
    lab = [
        (100 * (1 - black) * (1 - 0.3 * (c + m + y) / 3), 40 * (m - c) * (1 - black), 0.0)
        for c, m, y, black in corners.tolist()
    ]
    codes = [
        (int(light * 652.8), int((a + 128) * 256), int((b + 128) * 256)) for light, a, b in lab
    ]
    linear = struct.pack(">HH", 0, 65535)
    table = b"mft2\0\0\0\0\x04\x03\x02\0"
    table += struct.pack(">9i", *(65536 * n for n in (1, 0, 0, 0, 1, 0, 0, 0, 1)))
    table += struct.pack(">HH", 2, 2) + linear * 4
    table += b"".join(struct.pack(">3H", *code) for code in codes) + linear * 3
    made = profile(
        {b"wtpt": xyz((0.9642, 1, 0.8249)), **dict.fromkeys((b"A2B0", b"A2B1"), table)},
        b"CMYK",
        b"prtr",
    )
    return made[:20] + b"Lab " + made[24:]


def by_hand(
    pixels: NDArray[np.uint8], colorants: Sequence[Sequence[float]], exponent: float | None = None
) -> NDArray[np.float64]:
    """Return pixels in sRGB, 0..255, not rounded: curve, matrix, matrix, curve; None: sRGB's."""
    level = pixels / 255
    linear = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    return shown((level**exponent if exponent else linear) @ np.array(colorants))


def shown(xyz_d50: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what a colour is in sRGB, 0..255, not rounded."""
    red = np.clip(xyz_d50 @ np.linalg.inv(np.array(SRGB_XYZ)), 0, 1)
    level: NDArray[np.float64] = np.where(
        red <= 0.0031308, 12.92 * red, 1.055 * red ** (1 / 2.4) - 0.055
    )
    return 255 * level


def with_chunks(png: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG with chunks behind its header."""
    return png[:33] + b"".join(png_chunk(name, data) for name, data in chunks) + png[33:]


def iccp(icc: bytes) -> tuple[bytes, bytes]:
    return b"iCCP", b"named\0\0" + zlib.compress(icc)


def bitmap(pixels: NDArray[np.uint8], icc: bytes) -> bytes:
    """Return a BMP of the fifth version, which embeds a profile."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "BMP")
    rows = file.getvalue()[54:]
    head = file.getvalue()[18:54].ljust(52, b"\0") + b"DEBM" + bytes(48)
    head += struct.pack("<IIII", 4, 124 + len(rows), len(icc), 0)
    size = 14 + 124 + len(rows) + len(icc)
    return b"BM" + struct.pack("<IIII", size, 0, 138, 124) + head + rows + icc


def tiff(
    data: bytes,
    width: int,
    height: int,
    bits: int,
    photometric: int,
    tags: Mapping[int, Sequence[int]] | None = None,
) -> bytes:
    """Return an uncompressed TIFF; strips of tag 273 are counted from the start of the data."""
    entries = {256: [width], 257: [height], 258: [bits], 259: [1], 262: [photometric], 273: [0]}
    entries |= {277: [1], 278: [height], 279: [len(data)], **(tags or {})}
    more_at = 8 + 2 + 12 * len(entries) + 4
    more_size = sum(4 * len(values) for values in entries.values() if len(values) > 1)
    table, more = struct.pack("<H", len(entries)), b""
    for tag, given in sorted(entries.items()):
        wide = tag in (273, 279)
        values = [more_at + more_size + at for at in given] if tag == 273 else given
        packed = struct.pack(f"<{len(values)}{'I' if wide else 'H'}", *values)
        if len(packed) > 4:
            place, more = more_at + len(more), more + packed.ljust(4 * len(values), b"\0")
            packed = struct.pack("<I", place)
        table += struct.pack("<HHI", tag, 4 if wide else 3, len(values)) + packed.ljust(4, b"\0")
    head = b"II*\0" + struct.pack("<I", 8) + table + bytes(4) + more
    return head.ljust(more_at + more_size, b"\0") + data
