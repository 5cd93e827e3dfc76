"""What is left of crafted images: their pixels, and nothing that anybody wrote into them."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from paint_images import encode, paint
from PIL import Image, ImageCms, PngImagePlugin

from skindx.data.publish.clean_images import NotStrippable, clean_image, strip_jpeg
from skindx.imaging.decode import decode

SECRET = b"Jane Doe, Main Street 5"
PIXELS = paint(1, 128, 96)


def _exif(orientation: int = 1) -> bytes:
    """Return EXIF with GPS, a secret and a thumbnail."""
    exif = Image.Exif()
    exif[0x010E] = SECRET.decode()
    exif[274] = orientation
    exif.get_ifd(0x8825)[2] = (52.0, 31.0, 12.0)
    raw = exif.tobytes()
    thumbnail = encode(paint(2, 64, 48))
    return raw + thumbnail


def _jpeg(**options: object) -> bytes:
    return encode(PIXELS, quality=92, **options)


def _segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def _with_segment(data: bytes, marker: int, payload: bytes) -> bytes:
    return data[:2] + _segment(marker, payload) + data[2:]


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("letter.txt", SECRET)
    return buffer.getvalue()


JPEGS = {
    "exif, gps, thumbnail": lambda: _jpeg(exif=_exif()),
    "comment": lambda: _jpeg(comment=SECRET),
    "iptc": lambda: _with_segment(_jpeg(), 0xED, b"Photoshop 3.0\0" + SECRET),
    "xmp": lambda: _with_segment(_jpeg(), 0xE1, b"http://ns.adobe.com/xap/1.0/\0" + SECRET),
    "vendor": lambda: _with_segment(_jpeg(), 0xEF, SECRET),
    "second JFIF with a thumbnail": lambda: _with_segment(_jpeg(), 0xE0, b"JFXX\0\x10" + SECRET),
    "long Adobe": lambda: _with_segment(_jpeg(), 0xEE, b"Adobe\0\x64\0\0\0\0\x01" + SECRET),
    "trailing zip": lambda: _jpeg() + _zip() + SECRET,
    "second image (MPF)": lambda: (
        _with_segment(_jpeg(), 0xE2, b"MPF\0" + SECRET) + encode(paint(3))
    ),
    "progressive": lambda: _jpeg(progressive=True, comment=SECRET),
    "restarts": lambda: _jpeg(restart_marker_blocks=4, comment=SECRET),
    "fill bytes": lambda: _jpeg()[:2] + b"\xff\xff\xff" + _segment(0xFE, SECRET)[1:] + _jpeg()[2:],
    "grey": lambda: encode(PIXELS[:, :, 0], quality=92, comment=SECRET),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_keeps_its_pixels_to_the_bit_and_nothing_else(kind: str) -> None:
    data = JPEGS[kind]()
    clean = clean_image(data)
    assert np.array_equal(decode(clean.data), decode(data))
    assert (clean.suffix, clean.reencoded) == (".jpg", False)
    assert SECRET not in clean.data
    assert b"Exif" not in clean.data
    assert clean.data.count(b"\xff\xd8\xff") == 1  # no thumbnail, no second image
    assert clean.data.endswith(b"\xff\xd9")
    with Image.open(io.BytesIO(clean.data)) as image:
        assert not image.getexif()
        assert not set(image.info) - {"jfif", "jfif_version", "jfif_unit", "jfif_density"} - {
            "progressive", "progression", "adobe", "adobe_transform"
        }  # fmt: skip
    assert clean_image(clean.data) == clean


def test_a_clean_jpeg_stays_as_it_is() -> None:
    data = strip_jpeg(_jpeg())
    assert clean_image(data).data == data


@pytest.mark.parametrize("orientation", range(2, 9))
def test_what_metadata_turned_is_turned_for_good(orientation: int) -> None:
    data = _jpeg(exif=_exif(orientation), subsampling=0)
    clean = clean_image(data)
    upright = decode(data)
    assert clean.reencoded
    assert (clean.height, clean.width) == upright.shape[:2]
    with Image.open(io.BytesIO(clean.data)) as image:
        shown = np.asarray(image).astype(int)  # as one sees it who ignores metadata
    assert np.abs(shown - upright).mean() < 2
    assert SECRET not in clean.data
    assert clean.data.count(b"\xff\xd8\xff") == 1


def test_four_colours_become_three() -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).convert("CMYK").save(buffer, "JPEG", quality=95, comment=SECRET)
    clean = clean_image(buffer.getvalue())
    assert clean.reencoded
    with Image.open(io.BytesIO(clean.data)) as image:
        assert image.mode == "RGB"
    assert np.abs(decode(clean.data).astype(int) - decode(buffer.getvalue())).mean() < 3
    with pytest.raises(NotStrippable):
        strip_jpeg(buffer.getvalue())


def _wide_profile() -> bytes:
    """Return an sRGB profile whose red and green are exchanged: no viewer may ignore it."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {
        bytes(profile[at : at + 4]): at
        for at in range(132, 132 + 12 * int.from_bytes(profile[128:132], "big"), 12)
    }
    red, green = tags[b"rXYZ"], tags[b"gXYZ"]
    profile[red + 4 : red + 12], profile[green + 4 : green + 12] = (
        profile[green + 4 : green + 12],
        profile[red + 4 : red + 12],
    )
    return bytes(profile)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_srgb_profile_goes_and_a_wide_one_is_applied(kind: str) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    plain = encode(PIXELS, kind, icc_profile=srgb)
    clean = clean_image(plain)
    assert not clean.reencoded
    assert np.array_equal(decode(clean.data), decode(plain))
    wide = encode(PIXELS, kind, icc_profile=_wide_profile())
    turned = clean_image(wide)
    assert turned.reencoded
    swapped = decode(wide, decoding="as-stored")[:, :, [1, 0, 2]].astype(int)
    assert np.abs(decode(turned.data) - swapped).mean() < 3
    assert np.abs(decode(wide).astype(int) - swapped).max() <= 1
    for pixels in (clean, turned):
        with Image.open(io.BytesIO(pixels.data)) as image:
            assert "icc_profile" not in image.info


def test_a_broken_profile_is_no_reason_to_fail() -> None:
    data = encode(PIXELS, icc_profile=b"\0" * 16 + b"RGB " + SECRET)
    clean = clean_image(data)
    assert not clean.reencoded
    assert SECRET not in clean.data


def test_png_keeps_its_pixels_and_no_chunk_of_text() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", SECRET.decode())
    text.add_itxt("XML:com.adobe.xmp", SECRET.decode())
    data = encode(PIXELS, "PNG", pnginfo=text, exif=_exif()) + _zip() + SECRET
    clean = clean_image(data)
    assert (clean.suffix, clean.reencoded) == (".png", False)
    assert np.array_equal(decode(clean.data), PIXELS)
    assert SECRET not in clean.data
    chunks = [name for name in (b"tEXt", b"iTXt", b"eXIf", b"zTXt", b"PK") if name in clean.data]
    assert chunks == []


def test_what_hides_below_full_transparency_is_gone() -> None:
    rgba = np.dstack([PIXELS, np.full(PIXELS.shape[:2], 255, np.uint8)])
    rgba[:40, :40, 3] = 0
    clean = clean_image(encode(rgba, "PNG"))
    with Image.open(io.BytesIO(clean.data)) as image:
        assert image.mode == "RGB"
        assert np.asarray(image)[:40, :40].min() == 255


@pytest.mark.parametrize("kind", ["BMP", "TIFF"])
def test_other_formats_become_png_of_the_same_pixels(kind: str) -> None:
    clean = clean_image(encode(PIXELS, kind))
    assert (clean.suffix, clean.reencoded) == (".png", False)
    assert np.array_equal(decode(clean.data), PIXELS)


@pytest.mark.parametrize(
    ("options", "suffix"),
    [
        ({"quality": 90}, ".webp"),
        ({"quality": 90, "exif": _exif(), "xmp": SECRET}, ".webp"),
        ({"lossless": True, "exif": _exif()}, ".png"),
        ({"quality": 90, "exif": _exif(6)}, ".png"),
    ],
)
def test_webp_keeps_its_pixels(options: dict[str, object], suffix: str) -> None:
    data = encode(PIXELS, "WEBP", **options) + SECRET
    clean = clean_image(data)
    assert (clean.suffix, clean.reencoded) == (suffix, False)
    assert np.array_equal(decode(clean.data), decode(data))
    assert SECRET not in clean.data
    assert clean_image(clean.data).data == clean.data


def test_a_moving_webp_gives_its_first_image_alone() -> None:
    buffer = io.BytesIO()
    first, second = (Image.fromarray(paint(seed, 64, 64)) for seed in (1, 2))
    first.save(buffer, "WEBP", save_all=True, append_images=[second], lossless=True)
    clean = clean_image(buffer.getvalue())
    assert clean.suffix == ".png"
    assert np.array_equal(decode(clean.data), np.asarray(first))


def test_broken_streams_are_refused_by_the_stripper() -> None:
    data = _jpeg()
    for broken in (b"", data[:1], data[:40], data[2:], data[:2] + b"\xff\xd0" + data[2:]):
        with pytest.raises(NotStrippable):
            strip_jpeg(broken)


@pytest.mark.real
def test_real_images_lose_no_pixel(real: Path) -> None:
    files = (
        sorted((real / "isic9").rglob("*.jpg"))[::80]
        + sorted((real / "boxes").rglob("*.jpg"))[::80]
    )
    assert len(files) > 30
    for file in files:
        data = file.read_bytes()
        clean = clean_image(data)
        assert not clean.reencoded
        assert np.array_equal(decode(clean.data), decode(data))
        assert len(clean.data) <= len(data)
