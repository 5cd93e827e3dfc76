"""Files that hurt decoders, made by hand: small to send, expensive or impossible to read."""

import io
import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from paint_images import encode, paint  # isort: skip


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, colour: int, rows: bytes, *before: bytes) -> bytes:
    """Return a PNG of 8 bits a sample whose compressed rows are `rows`."""
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = (png_chunk(b"IHDR", header), *before, png_chunk(b"IDAT", rows), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def packed_zeros(block: int, blocks: int) -> bytes:
    """Return a zlib stream of zeros; one block is compressed, and stands there as often as asked.

    To compress all of a bomb takes a second of each process that collects the tests.
    """
    squeeze = zlib.compressobj(9)
    packed = squeeze.compress(bytes(block)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    checksum = struct.pack(">I", (block * blocks % 65521) << 16 | 1)  # Adler-32 of zeros
    return packed[:2] + packed[2:] * blocks + b"\x03\x00" + checksum


def pixel_bomb() -> bytes:
    """Return a PNG that names 60,000 x 60,000 pixels."""
    return png(60_000, 60_000, 2, zlib.compress(bytes(1000)))


@cache
def memory_bomb() -> bytes:
    """Return a PNG of 49 million RGBA pixels, fewer than the cap, in less than 200 kB."""
    side = 7000
    return png(side, side, 6, packed_zeros((1 + 4 * side) * 100, side // 100))


@cache
def text_bomb() -> bytes:
    """Return a PNG whose comment unpacks to 100 MB."""
    comment = png_chunk(b"zTXt", b"Comment\0\0" + packed_zeros(1_000_000, 100))
    return png(64, 64, 0, zlib.compress(bytes(65 * 64)), comment)


@cache
def chunk_bomb() -> bytes:
    """Return a PNG of 18 MB of empty chunks, each of which takes a step in Python: seconds."""
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"abCd", b"") * 1_500_000


def scan_bomb(scans: int, side: int = 7000) -> bytes:
    """Return a progressive JPEG of `scans` empty passes over all of its pixels, none of them wrong.

    Each takes 70 bytes here and a pass over side x side pixels there. Strict decoding finds no
    fault in it, so nothing but a clock ends it.
    """
    blocks = (-(-side // 8)) ** 2
    table = b"\xff\xdb" + struct.pack(">HB", 67, 0) + bytes([1] * 64)
    frame = b"\xff\xc2" + struct.pack(">HBHHBBBB", 11, 8, side, side, 1, 1, 0x11, 0)
    # Direct current: one symbol, "no difference", as the code 0. The others: "the next 2^14 (2^13)
    # and more blocks are done", as 0 and 10.
    codes_dc = b"\xff\xc4" + struct.pack(">HB", 20, 0x00) + bytes([1] + [0] * 15) + b"\x00"
    codes_ac = b"\xff\xc4" + struct.pack(">HB", 21, 0x10) + bytes([1, 1] + [0] * 14) + b"\xe0\xd0"
    whole, rest = divmod(blocks, 2**15 - 1)
    assert 2**13 <= rest < 2**14
    flat = _entropy("0" * blocks)
    empty = _entropy(("0" + "1" * 14) * whole + "10" + f"{rest - 2**13:013b}")
    scan_dc = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 0, 0, 0) + flat
    scan_ac = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 1, 63, 0) + empty
    body = table + frame + codes_dc + codes_ac + scan_dc + scan_ac * scans
    return b"\xff\xd8" + body + b"\xff\xd9"


def _entropy(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8)
    return data.replace(b"\xff", b"\xff\x00")


def torn_in_the_middle() -> bytes:
    """Return a JPEG with 300 bytes missing, which Pillow, OpenCV and torchvision let pass."""
    data = encode(paint(30), quality=90)
    middle = len(data) // 2
    return data[:middle] + data[middle + 300 :]


def with_exif(seed: int, tags: dict[int, object], gps: bool = False) -> bytes:
    exif = Image.Exif()
    for tag, value in tags.items():
        exif[tag] = value
    if gps:
        exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 51.0, 24.0), 3: "E", 4: (2.0, 21.0, 3.0)})
    return encode(paint(seed), exif=exif.tobytes())


def animated(kind: str, seed: int) -> bytes:
    frames = [Image.fromarray(paint(seed + n)) for n in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:], lossless=True)
    return buffer.getvalue()


def in_mode(seed: int, mode: str, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(paint(seed)).convert(mode).save(buffer, kind, quality=95)
    return buffer.getvalue()


def see_through_palette() -> bytes:
    """Return a PNG with a palette whose right half is a transparent black."""
    pixels = np.full((80, 80, 4), 200, np.uint8)
    pixels[:, 40:] = (0, 0, 0, 0)
    pixels[::2, :40] = (90, 60, 50, 255)
    image = Image.fromarray(pixels[..., :3]).quantize(4)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=image.getpixel((79, 0)))
    return buffer.getvalue()


def sixteen_bits() -> bytes:
    deep = np.tile(np.arange(0, 65536, 256, dtype=np.uint16), (100, 1))
    deep[::2] = deep[::2, ::-1]
    return encode(deep, "PNG")


@cache
def two_gigapixels() -> bytes:
    """Return a PNG of 2 billion pixels of one bit, in about 250 kB."""
    side = 44_720
    rows = packed_zeros((1 + side // 8) * 104, side // 104)
    start = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def strew(folder: Path) -> None:
    """Leave in a folder what Finder, Explorer, KDE and a storage box leave in every one."""
    files = (".DS_Store", "._.DS_Store", "._bundle.json", "._x.txt", ".directory", "Icon\r")
    for name in (*files, "Thumbs.db", "thumbs.db", "ehthumbs.db", "desktop.ini", "Desktop.ini"):
        (folder / name).write_bytes(b"\0\0\0\1Bud1\xff")
    for name in ("__MACOSX", "@eaDir", ".Spotlight-V100"):
        (folder / name).mkdir()
        (folder / name / "x.txt").write_bytes(b"\xff")
