"""Images that are small to send and costly to decode: refused by their header, before any pixel."""

import io
import re
import struct
import zlib

import numpy as np
import pytest
from hostile_images import png, png_chunk, scan_bomb
from hypothesis import given
from hypothesis import strategies as st
from paint_images import encode, paint
from PIL import Image

from skindx.diagnosis.photo_checks import Refused, open_photo
from skindx.imaging.decode import decode, decode_small
from skindx.imaging.decode_cost import MAX_PASSES, DecodeCost, jpeg_passes, webp_cost
from skindx.imaging.image_formats import DamagedImage

PIXELS = paint(1)
SIDE = 7000


def png_header(width: int, height: int, depth: int, colour: int, *chunks: bytes) -> bytes:
    """Return a PNG without pixels: whoever tries to decode it finds it damaged."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 1))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IDAT", b"x")


def bmp_header(width: int, height: int) -> bytes:
    """Return a BMP of run-length codes without any."""
    palette = bytes(1024)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 2000, 0, 0, 14 + 40 + 1024) + head + palette


def tiff_header(width: int, height: int, compression: int, *more: tuple[int, int]) -> bytes:
    """Return an RGB TIFF of one strip without its data."""
    tags = {256: width, 257: height, 258: 8, 259: compression, 262: 2, 273: 8, 277: 3, 279: 9}
    tags |= dict(more)
    fields = b"".join(
        struct.pack("<HHII", tag, 3 if value < 65536 and tag == 258 else 4, 1, value)
        for tag, value in sorted(tags.items())
    )
    return b"II*\x00" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + fields + bytes(8)


def webp_header(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 100) + b"WEBP" + kind + struct.pack("<I", 10) + body


def canvas(width: int, height: int) -> bytes:
    """Return a canvas through which something shines."""
    return b"\x10\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")


ANIMATION = png_chunk(b"acTL", struct.pack(">II", 2, 0))
HEADERS = {
    "png of too many pixels": (png_header(60_000, 60_000, 8, 2), "too-many-pixels"),
    "png of one long row": (png_header(70_000, 100, 8, 2), "too-many-pixels"),
    "png of 16 bits": (png_header(SIDE, SIDE, 16, 6), "decode-memory"),
    "png of many colours": (png_header(SIDE, SIDE, 8, 6), "decode-memory"),
    "animated png": (png_header(SIDE, SIDE, 8, 6, ANIMATION), "decode-memory"),
    "webp canvas": (webp_header(b"VP8X", canvas(SIDE, SIDE)), "decode-memory"),
    "webp canvas of too many pixels": (
        webp_header(b"VP8X", canvas(16_000, 16_000)),
        "too-many-pixels",
    ),
    "lossless webp": (
        webp_header(b"VP8L", struct.pack("<BI", 0x2F, 6999 | 6999 << 14 | 1 << 28) + bytes(5)),
        "decode-memory",
    ),
    "lossy webp": (
        webp_header(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 8000, 8000)),
        "too-many-pixels",
    ),
    "bmp of too many pixels": (bmp_header(60_000, 60_000), "too-many-pixels"),
    # A jump of 255 rows takes 4 bytes: 12 GB of this width.
    "bmp of one long row": (bmp_header(50_000_000, 1), "too-many-pixels"),
    "tiff of too many pixels": (tiff_header(60_000, 60_000, 5), "too-many-pixels"),
    "tiff of one strip": (tiff_header(SIDE, SIDE, 5), "decode-memory"),
    "tiff of a large tile": (
        tiff_header(100, 100, 5, (322, 20_000), (323, 20_000), (324, 8), (325, 9)),
        "decode-memory",
    ),
    "jpeg in a tiff of many passes": (
        tiff_header(4000, 4000, 7) + b"\xff\xda" * 200,
        "decode-timeout",
    ),
    "jpeg of many passes": (scan_bomb(99), "decode-timeout"),
    "small jpeg of many passes": (scan_bomb(MAX_PASSES, 800), "decode-timeout"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_what_costs_too_much_is_refused_by_its_header(name: str) -> None:
    data, reason = HEADERS[name]
    for read in (decode, lambda data: decode_small(data, 72)):
        with pytest.raises(DamagedImage) as refused:
            read(data)
        assert refused.value.reason == reason
        assert refused.value.__cause__ is None, "the words are a library's"


def test_ordinary_large_images_are_within_the_cap() -> None:
    for cost in (
        DecodeCost(8160, 6120, 3),  # 50 megapixels of a phone, baseline
        DecodeCost(8000, 6000, 6, 10),  # progressive, colours at half the resolution
        DecodeCost(8160, 6120, 7, more_bytes=16 << 20),  # PNG, TIFF, BMP, HEIC
        DecodeCost(5200, 4000, 16),  # WebP through which something shines
        DecodeCost(640, 480, 6, 20),
    ):
        cost.check(50_000_000)


@pytest.mark.parametrize(
    "head",
    [
        webp_header(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 8064, 6048)),
        webp_header(b"VP8L", struct.pack("<BI", 0x2F, 8063 | 6047 << 14) + bytes(5)),
        webp_header(b"VP8X", bytes(1) + canvas(8064, 6048)[1:]),
    ],
)
def test_an_opaque_webp_may_have_the_cap_too(head: bytes) -> None:
    cost = webp_cost(head)
    assert (cost.width, cost.height) == (8064, 6048)
    cost.check(50_000_000)


@pytest.mark.parametrize(("width", "height"), [(12_000, 9_000), (9_248, 6_936)])
def test_a_larger_jpeg_is_read_at_a_smaller_scale_where_that_will_do(
    width: int, height: int
) -> None:
    jpeg = encode(np.zeros((1, 1, 3), np.uint8) + 99, "JPEG")
    frame = jpeg.index(b"\xff\xc0") + 5
    large = jpeg[:frame] + struct.pack(">HH", height, width) + jpeg[frame + 4 :]
    for at_least, reason in ((None, "too-many-pixels"), ((3000, 4000), "damaged")):
        with pytest.raises(DamagedImage) as refused:
            decode(large, at_least=at_least)
        assert refused.value.reason == reason


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_passes_are_counted_as_the_decoder_reads_them(
    options: dict[str, object], mode: str
) -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(buffer, "JPEG", **options)
    data = buffer.getvalue()
    scans = data.count(b"\xff\xda")
    assert scans == 1 or options
    assert jpeg_passes(data) == scans
    # A thumbnail, a comment, what a phone appends: no passes over this image.
    comment = b"\xff\xfe" + struct.pack(">H", 2 + 400) + b"\xff\xda" * 200
    odd = data[:2] + comment + b"\xff\xff" + data[2:] + b"\xff\xda" * 500
    assert jpeg_passes(odd) == scans
    assert decode(odd, max_pixels=10**6).shape == PIXELS.shape


def test_a_baseline_jpeg_of_separate_colours_has_several_passes() -> None:
    data = encode(PIXELS, "JPEG")
    scan = data.index(b"\xff\xda")
    one = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + data[scan + 14 : -2]
    assert jpeg_passes(data[:scan] + 300 * one + b"\xff\xd9") == 300
    with pytest.raises(DamagedImage, match="too many passes"):
        decode(data[:scan] + 300 * one + b"\xff\xd9")


@given(st.binary(max_size=300))
def test_any_bytes_have_a_cost_or_are_damaged(tail: bytes) -> None:
    assert jpeg_passes(b"\xff\xd8" + tail) >= 1
    try:
        cost = webp_cost(b"RIFF1234WEBP" + tail)
    except DamagedImage:
        return
    assert cost.width * cost.height >= 0


@given(
    st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 20), st.integers(1, 1000),
    st.integers(10**4, 10**8),
)  # fmt: skip
def test_whatever_passes_is_bounded(
    width: int, height: int, pixel_bytes: int, passes: int, cap: int
) -> None:
    try:
        DecodeCost(width, height, pixel_bytes, passes).check(cap)
    except DamagedImage:
        return
    assert width * height <= cap
    assert width * height * pixel_bytes <= max(7 * cap, 64 << 20)
    assert width * height * passes <= 12 * cap


def test_images_of_all_formats_still_come_back() -> None:
    assert np.array_equal(decode(encode(PIXELS, "TIFF", compression="jpeg")).shape, PIXELS.shape)
    for kind, options in (
        ("PNG", {}), ("BMP", {}), ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
    ):  # fmt: skip
        np.testing.assert_array_equal(decode(encode(PIXELS, kind, **options)), PIXELS)
    assert decode(png(8, 8, 0, zlib.compress(bytes(72)))).shape == (8, 8, 3)


BOMBS = {
    "passes": lambda: scan_bomb(60),
    "pixels of a PNG": lambda: png(20_000, 20_000, 2, b""),
    "colours of a WebP": lambda: b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\x00\x20\x00" * 2,
    "pixels of a WebP": lambda: b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\xff\x3f\x00" * 2,
    "pixels of a large WebP": lambda: b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\xff" * 6,
}
LIBRARIES = r"(?i)bomb|pillow|DOS|IDAT|IHDR|libwebp|libjpeg|turbo|cannot identify|b'"


@pytest.mark.parametrize("name", BOMBS)
def test_what_costs_too_much_is_refused_in_our_own_words(name: str) -> None:
    with pytest.raises(Refused, match=r"take it again or save it as a .*JPEG.*\.$") as caught:
        open_photo(BOMBS[name]())
    assert not re.search(LIBRARIES, str(caught.value))
    assert re.search(r"pixels|passes", str(caught.value))
