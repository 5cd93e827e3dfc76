import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from hostile_images import png_chunk
from hypothesis import given
from hypothesis import strategies as st
from paint_images import encode, paint
from PIL import Image, ImageOps

from skindx.imaging.decode import decode, decode_small, has_metadata
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
    image = Image.fromarray(paint(2, 1500, 1600)).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    buffer = io.BytesIO()
    image.save(buffer, "TIFF" if mode == "CMYK" else "PNG")
    white = Image.new("RGBA", image.size, "white")
    expected = Image.alpha_composite(white, image) if mode == "RGBA" else image
    np.testing.assert_array_equal(decode(buffer.getvalue()), np.asarray(expected.convert("RGB")))


def test_orientation_is_found_wherever_pillow_finds_it() -> None:
    plain = encode(PIXELS)
    assert not has_metadata(plain)
    packet = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6"></x:xmpmeta>'
    xmp = encode(PIXELS, xmp=packet)
    assert has_metadata(xmp)
    assert decode(xmp).shape == (PIXELS.shape[1], PIXELS.shape[0], 3)
    # Bytes that only look like metadata stand behind the pixels or are no segment at all.
    assert not has_metadata(plain + b"\xff\xe1Exif\0\0")
    assert has_metadata(plain[:2] + b"?" + plain[2:]), "the unusual is left to Pillow"


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
