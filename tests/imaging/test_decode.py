import io
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hostile_images import png_chunk
from hypothesis import given
from hypothesis import strategies as st
from paint_images import encode, paint
from PIL import Image, ImageOps, PngImagePlugin
from stored_colours import tiff

from skindx.api.predictions import photo_bytes
from skindx.data.boxes.box_file import upright_size
from skindx.imaging.decode import decode, decode_small, has_metadata, turned
from skindx.imaging.image_formats import DamagedImage, refusal

PIXELS = paint(1)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_come_back_exactly(kind: str) -> None:
    np.testing.assert_array_equal(decode(encode(PIXELS, kind)), PIXELS)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_jpeg_agrees_with_pillow(options: dict[str, object]) -> None:
    data = encode(PIXELS, "JPEG", **options)
    theirs = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(decode(data) - theirs).max() <= 1


def test_webp_is_read() -> None:
    assert np.abs(decode(encode(PIXELS, "WEBP", lossless=True)).astype(int) - PIXELS).max() == 0


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_four_ink_jpegs_become_rgb(mode: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(buffer, "JPEG", quality=95)
    expected = np.asarray(Image.open(buffer).convert("RGB")).astype(int)
    assert np.abs(decode(buffer.getvalue()) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    data = encode(PIXELS, kind, exif=exif.tobytes())
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert decode(data).shape == (*upright.size[::-1], 3)
    assert np.abs(decode(data).astype(int) - np.asarray(upright)).max() <= 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_turns_white(mode: str) -> None:
    image = Image.new("RGBA", (70, 70), (10, 10, 10, 0))
    image.paste((200, 200, 200, 255), (0, 0, 35, 70))
    buffer = io.BytesIO()
    if mode == "P":
        image = image.convert("RGB").quantize(4)
        image.save(buffer, "PNG", transparency=image.getpixel((69, 0)))
    else:
        image.convert(mode).save(buffer, "PNG")
    pixels = decode(buffer.getvalue())
    assert (pixels[:, 40:] == 255).all()
    assert (pixels[:, :30] == 200).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(kind: str) -> None:
    deep = np.tile(np.arange(0, 65536, 256, dtype=np.uint16), (64, 1))
    pixels = decode(encode(deep, kind))
    np.testing.assert_array_equal(pixels[0, :, 0], np.arange(256))


@pytest.mark.parametrize("mode", ["RGB", "P", "RGBA", "CMYK"])
def test_large_images_are_converted_in_bands_without_a_seam(mode: str) -> None:
    image = Image.fromarray(paint(2, 1100, 1200)).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    buffer = io.BytesIO()
    image.save(buffer, "TIFF" if mode == "CMYK" else "PNG")
    white = Image.new("RGBA", image.size, "white")
    expected = Image.alpha_composite(white, image) if mode == "RGBA" else image
    np.testing.assert_array_equal(decode(buffer.getvalue()), np.asarray(expected.convert("RGB")))


PACKET = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6"></x:xmpmeta>'


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_orientation_in_xmp_alone_is_not_obeyed_as_in_browsers(
    kind: str, tmp_path: Path
) -> None:
    """EXIF decides, also where XMP says otherwise; Pillow obeys both."""
    packet: dict[str, object] = {"xmp": PACKET}
    if kind == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", PACKET.decode())
        packet = {"pnginfo": text}
    if kind == "TIFF":
        packet = {"tiffinfo": {700: PACKET}}
    for stored, orientation in ((None, 1), (1, 1), (3, 3), (8, 8)):
        exif = Image.Exif()
        if stored:
            exif[274] = stored
        options = packet | ({"exif": exif} if stored else {})
        if kind == "TIFF" and stored:
            options = {"tiffinfo": {700: PACKET, 274: stored}}
        data = encode(PIXELS, kind, **options)
        assert b'tiff:Orientation="6"' in data
        expected = turned(np.asarray(Image.open(io.BytesIO(encode(PIXELS, kind)))), orientation)
        assert np.abs(decode(data).astype(int) - expected).max() <= 1, (kind, stored)
        file = tmp_path / "image"
        file.write_bytes(data)
        framed = upright_size(file)
        assert framed is not None
        assert framed[0] == expected.shape[1::-1]
        asked = decode(photo_bytes(Image.open(io.BytesIO(data))))
        assert np.abs(asked.astype(int) - expected).max() <= 1, (kind, stored)


def test_metadata_is_looked_for_before_the_pixels_alone() -> None:
    plain = encode(PIXELS)
    assert not has_metadata(plain)
    assert has_metadata(encode(PIXELS, xmp=PACKET))
    # Bytes that only look like metadata stand behind the pixels or are no segment at all.
    assert not has_metadata(plain + b"\xff\xe1Exif\0\0")
    assert has_metadata(plain[:2] + b"?" + plain[2:]), "the unusual is left to Pillow"


RAMP = np.tile(np.arange(256), (64, 1))
TWELVE = RAMP * 16 + (RAMP >> 4)
FIRST, SECOND = TWELVE[:, ::2], TWELVE[:, 1::2]
DEEP = {
    "16": (16, 1, (RAMP * 257).astype("<u2")),
    "16, signed": (16, 2, (RAMP * 128).astype("<i2")),
    "32": (32, 1, (RAMP * 0x01010101).astype("<u4")),
    "32, signed": (32, 2, (RAMP << 23).astype("<i4")),
    "12": (
        12,
        1,
        np.stack([FIRST >> 4, (FIRST & 15) << 4 | SECOND >> 8, SECOND & 255], -1).astype(np.uint8),
    ),
    "4": (4, 1, (RAMP[:, ::2] & 0xF0 | RAMP[:, 1::2] >> 4).astype(np.uint8)),
    "1": (1, 1, np.packbits(RAMP > 127, axis=1)),
    "8": (8, 1, RAMP.astype(np.uint8)),
}


@pytest.mark.parametrize("white_is_zero", [False, True])
@pytest.mark.parametrize("depth", DEEP)
def test_a_grey_tiff_of_any_depth_is_a_ramp_or_is_refused(depth: str, white_is_zero: bool) -> None:
    bits, signed, samples = DEEP[depth]
    data = tiff(samples.tobytes(), 256, 64, bits, 0 if white_is_zero else 1, {339: [signed]})
    try:
        grey_HW = decode(data)[:, :, 1].astype(int)
    except DamagedImage:  # Pillow reads no others of these from white to black
        assert white_is_zero
        assert depth in ("12", "16, signed", "32", "32, signed")
        return
    levels = 255 / (2 ** min(bits, 8) - 1)
    expected_HW = (RAMP >> (8 - min(bits, 8))) * levels
    assert np.abs(grey_HW - (255 - expected_HW if white_is_zero else expected_HW)).max() <= 1


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate"])
def test_a_compressed_tiff_whose_white_is_zero_is_no_negative(compression: str) -> None:
    deep = (RAMP * 257).astype(np.uint16)
    data = encode(deep, "TIFF", compression=compression, tiffinfo={262: 0})
    np.testing.assert_array_equal(decode(data)[:, :, 0], 255 - RAMP)


@pytest.mark.parametrize("bits", [8, 16])
def test_planes_of_a_tiff_are_put_together(bits: int) -> None:
    planes = np.stack([RAMP, 255 - RAMP, RAMP // 2])
    samples = planes.astype(np.uint8) if bits == 8 else (planes * 257).astype("<u2")
    size = samples[0].nbytes
    strips = {273: [0, size, 2 * size], 279: [size] * 3, 277: [3], 258: [bits] * 3, 284: [2]}
    data = tiff(samples.tobytes(), 256, 64, bits, 2, strips)
    np.testing.assert_array_equal(decode(data), np.moveaxis(planes, 0, 2))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_small_grey_decode_is_the_large_one_shrunk(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    data = encode(paint(3, 640, 400), kind, exif=exif.tobytes())
    small = decode_small(data, 72)
    large = cv2.cvtColor(decode(data), cv2.COLOR_RGB2GRAY)
    assert min(small.shape) >= 72
    assert (small.shape[0] < small.shape[1]) == (large.shape[0] < large.shape[1])
    shrunk = cv2.resize(large, small.shape[::-1], interpolation=cv2.INTER_AREA).astype(int)
    assert np.abs(small - shrunk).mean() < 1.5
    with pytest.raises(DamagedImage, match="more than the cap"):
        decode_small(data, 72, max_pixels=1000)


def test_reasons_are_words() -> None:
    for data, reason in (
        (b"GIF89a" + bytes(20), "unsupported-format"),
        (b"\xff\xd8\xff", "damaged"),
    ):
        with pytest.raises(DamagedImage) as refused:
            decode(data)
        assert refused.value.reason == reason
    with pytest.raises(DamagedImage, match=r"it is a GIF, .*not read; JPEG, PNG"):
        decode(b"GIF89a" + bytes(20))
    assert refusal(MemoryError()).reason == "decode-memory"
    assert refusal(ValueError("Insufficient memory (case 4)")).reason == "decode-memory"


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.fromarray(paint(seed)) for seed in (1, 2)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "PNG", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode(buffer.getvalue()), PIXELS)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_truncated_files_are_damaged(kind: str, share: float) -> None:
    data = encode(PIXELS, kind)
    with pytest.raises(DamagedImage, match=r"\w"):
        decode(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    ("stop", "instead"),
    [(300, b""), (2, b"\xff\xd3"), (None, b"\xff\xd9")],
    ids=["a hole", "a stray marker", "an end too early"],
)
def test_damage_in_mid_stream_that_pillow_passes_is_found(stop: int | None, instead: bytes) -> None:
    data = encode(PIXELS, "JPEG", quality=90)
    middle, rest = data[: len(data) // 2], data[len(data) // 2 :]
    damaged = middle + instead + (rest[stop:] if stop else b"")
    Image.open(io.BytesIO(damaged)).load()
    with pytest.raises(DamagedImage, match="Corrupt JPEG"):
        decode(damaged)


@pytest.mark.parametrize("kind", ["text", "profile"])
def test_long_notes_of_a_png_hide_neither_pixels_nor_orientation(kind: str) -> None:
    exif = Image.Exif()
    exif[274] = 6
    data = encode(PIXELS, "PNG", exif=exif.tobytes())
    long = zlib.compress(bytes(3 << 20))
    note = (
        png_chunk(b"zTXt", b"note\0\0" + long)
        if kind == "text"
        else png_chunk(b"iCCP", b"name\0\0" + long)
    )
    at = data.index(b"IDAT") - 4
    np.testing.assert_array_equal(decode(data[:at] + note + data[at:]), decode(data))


def test_a_pixel_bomb_is_refused_by_its_header() -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
    bomb += struct.pack(">I", zlib.crc32(chunk)) + struct.pack(">I", 9) + b"IDAT"
    with pytest.raises(DamagedImage, match=r"60000 x 60000|pixels"):
        decode(bomb)


def test_the_cap_counts_pixels() -> None:
    height, width, _ = PIXELS.shape
    for kind in ("JPEG", "PNG"):
        data = encode(PIXELS, kind)
        assert decode(data, max_pixels=height * width).shape == PIXELS.shape
        with pytest.raises(DamagedImage, match="more than the cap"):
            decode(data, max_pixels=height * width - 1)


KINDS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP")
HEADS = [encode(PIXELS, kind)[:length] for kind in KINDS for length in (16, 400)]


@given(st.sampled_from([b"", *HEADS]), st.binary(max_size=200))
def test_any_bytes_are_an_image_or_damaged(head: bytes, tail: bytes) -> None:
    try:
        pixels = decode(head + tail)
    except DamagedImage:
        return
    assert pixels.ndim == 3
    assert pixels.dtype == np.uint8
