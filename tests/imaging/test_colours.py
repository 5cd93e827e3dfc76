"""Decoding ends in sRGB, whatever a file says of its colours."""

import io
import struct
import time
import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from paint_images import encode, paint
from PIL import Image, ImageCms
from stored_colours import (
    ADOBE,
    ADOBE_XYZ,
    GREY_18,
    P3,
    P3_XYZ,
    SRGB_XYZ,
    bitmap,
    by_hand,
    gamma,
    iccp,
    inks_profile,
    matrix_profile,
    profile,
    shown,
    srgb_curve,
    tiff,
    with_chunks,
    xyz,
)

from skindx.imaging import srgb
from skindx.imaging.decode import decode, decode_noted, decode_small
from skindx.imaging.sandboxed_images import decode_heic
from skindx.imaging.srgb import conversion
from skindx.imaging.stored_colours import MAX_PROFILE_BYTES, stored_colours

PIXELS = paint(1)
PATCHES = (
    np.array(
        [[[200, 90, 80], [230, 150, 120], [255, 0, 0], [0, 255, 0], [12, 9, 7], [128, 128, 128]]],
        np.uint8,
    )
    .repeat(80, 0)
    .repeat(20, 1)
)
"""Erythema, light skin, full red and green, dark skin in shadow, grey."""


def assert_close(pixels: NDArray[np.uint8], expected: NDArray[np.float64], most: float = 1) -> None:
    assert np.abs(pixels.astype(float) - expected).max() <= most


@pytest.mark.parametrize(
    ("icc", "colorants", "exponent"), [(P3, P3_XYZ, None), (ADOBE, ADOBE_XYZ, 563 / 256)]
)
def test_patches_are_those_computed_by_hand(
    icc: bytes, colorants: tuple[tuple[float, ...], ...], exponent: float | None
) -> None:
    expected = by_hand(PATCHES, colorants, exponent)
    assert abs(expected[0, 0, 0] - 200) > 4, "the profile makes a difference"
    for data in (
        encode(PATCHES, "PNG", icc_profile=icc),
        encode(PATCHES, "TIFF", icc_profile=icc),
        encode(PATCHES, "WEBP", lossless=True, icc_profile=icc),
        bitmap(PATCHES, icc),
    ):
        pixels, notes = decode_noted(data)
        assert_close(pixels, expected)
        assert notes == {"colours-converted"}
        np.testing.assert_array_equal(decode(data, decoding="as-stored"), PATCHES)
    for options in ({}, {"progressive": True}):
        data = encode(PATCHES, quality=97, subsampling=0, icc_profile=icc, **options)
        stored = decode(data, decoding="as-stored")
        assert_close(decode(data), by_hand(stored, colorants, exponent))
        small = decode(data, at_least=(40, 60))
        assert small.shape[0] < PATCHES.shape[0]
        assert_close(small[:, 3:-3:15], by_hand(stored[1::2, 6:-6:30], colorants, exponent), 16)
        assert (
            np.abs(decode_small(data, 40).astype(int)[:, 5] - decode(data)[0, 10].mean()).max() < 40
        )
    lossy = decode(encode(PATCHES, "WEBP", quality=95, icc_profile=icc))
    assert_close(lossy[40, 10::20], expected[40, 10::20], 12)


def test_a_small_grey_decode_sees_the_colours_of_the_large_one() -> None:
    import cv2

    plain = np.full((256, 256, 3), (230, 40, 40), np.uint8)
    data = encode(plain, quality=95, subsampling=0, icc_profile=P3)
    small, whole = decode_small(data, 64), cv2.cvtColor(decode(data), cv2.COLOR_RGB2GRAY)
    assert abs(int(small[3, 3]) - int(whole[9, 9])) <= 1
    assert abs(int(small[3, 3]) - int(cv2.cvtColor(plain, cv2.COLOR_RGB2GRAY)[0, 0])) > 1


@pytest.mark.parametrize(
    "icc",
    [
        ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
        matrix_profile(SRGB_XYZ, srgb_curve()),
    ],
    ids=["LittleCMS", "by hand, without a name"],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_srgb_by_any_name_changes_nothing(icc: bytes, kind: str) -> None:
    pixels, notes = decode_noted(encode(PIXELS, kind, icc_profile=icc))
    np.testing.assert_array_equal(pixels, decode(encode(PIXELS, kind)))
    assert notes == set()


def test_a_wrong_name_does_not_make_a_profile_srgb() -> None:
    named = matrix_profile(ADOBE_XYZ, gamma(2.2)).replace(b"test", b"sRGB")
    assert conversion(named, "RGB").convert is not None


def test_numpy_and_the_compiled_loop_give_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (64, 500, 3), np.uint8)
    first = conversion(ADOBE, "RGB").convert
    monkeypatch.setattr(srgb, "convert_kernel", lambda: None)
    second = conversion.__wrapped__(ADOBE, "RGB").convert
    assert first
    assert second
    assert "_by_tables" in first.__qualname__, "LittleCMS alone takes six times as long as decoding"
    np.testing.assert_array_equal(first(pixels.copy()), second(pixels.copy()))
    peer = ImageCms.buildTransform(
        ImageCms.ImageCmsProfile(io.BytesIO(ADOBE)),
        ImageCms.createProfile("sRGB"),
        "RGB",
        "RGB",
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    assert_close(
        first(pixels.copy()), np.asarray(peer.apply(Image.fromarray(pixels))).astype(float)
    )


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_a_profile_of_grey_brightens_or_darkens(kind: str) -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (64, 1))
    for icc, exponent in ((GREY_18, 1.8), (matrix_profile(SRGB_XYZ, gamma(1.8)), 1.8)):
        options = {"quality": 100} if kind == "JPEG" else {}
        pixels, notes = decode_noted(encode(ramp, kind, icc_profile=icc, **options))
        linear = (np.arange(256) / 255) ** exponent
        expected = 255 * np.where(
            linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055
        )
        assert_close(pixels, np.repeat(expected[None, :, None], 3, 2), 2)
        assert notes == {"colours-converted"}
    deep = tiff((ramp.astype(int) * 257).astype("<u2").tobytes(), 256, 64, 16, 1)
    assert (decode(deep)[0, :, 0] == np.arange(256)).all()


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_inks_are_mixed_by_their_profile(kind: str) -> None:
    """The made-up press has white paper, and each ink takes a tenth of the light."""
    inks = Image.new("CMYK", (64, 64), (255, 0, 0, 0))
    inks.paste((0, 0, 0, 0), (0, 0, 64, 32))
    file = io.BytesIO()
    inks.save(
        file, kind, icc_profile=inks_profile(), **({"quality": 100} if kind == "JPEG" else {})
    )
    pixels, notes = decode_noted(file.getvalue())
    assert notes == {"colours-converted"}
    assert_close(pixels[4, 4], np.full(3, 255.0), 3)
    lab = ImageCms.buildTransform(
        ImageCms.createProfile("LAB"),
        ImageCms.createProfile("sRGB"),
        "LAB",
        "RGB",
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
    )
    cyan = Image.new("LAB", (1, 1), (round(2.55 * 90), 128 - 40, 128))
    assert_close(pixels[60, 60], np.asarray(lab.apply(cyan)).astype(float)[0, 0], 3)
    file.truncate(0)
    file.seek(0)
    inks.save(file, kind)
    assert decode_noted(file.getvalue())[1] == set()


def test_lab_of_a_tiff_is_shown() -> None:
    lab = Image.new("LAB", (64, 64), (128, 128 + 40, 128 + 20))
    file = io.BytesIO()
    lab.save(file, "TIFF")
    green = (100 * 128 / 255 + 16) / 116
    xyz_d50 = np.array([0.9642, 1, 0.8249]) * np.array([green + 0.08, green, green - 0.1]) ** 3
    assert_close(decode(file.getvalue())[9, 9], shown(xyz_d50))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_shines_through_lies_on_white_in_srgb(mode: str) -> None:
    image = Image.fromarray(PATCHES).convert("RGBA")
    image.putalpha(Image.new("L", image.size, 255))
    image.paste((10, 10, 10, 0), (0, 0, 120, 40))
    file = io.BytesIO()
    if mode == "P":
        paletted = Image.fromarray(PATCHES).quantize(8)
        paletted.save(file, "PNG", icc_profile=P3)
        assert_close(decode(file.getvalue()), by_hand(np.asarray(paletted.convert("RGB")), P3_XYZ))
        return
    icc = P3 if mode == "RGBA" else GREY_18
    image.convert(mode).save(file, "PNG", icc_profile=icc)
    pixels = decode(file.getvalue())
    assert (pixels[:30, :119] == 255).all()
    if mode == "RGBA":
        assert_close(pixels[45:], by_hand(PATCHES, P3_XYZ)[45:])
    else:
        assert pixels[60, 110, 0] > 128, "of gamma 1.8, grey is lighter in sRGB"


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    return with_chunks(encode(PATCHES, "PNG"), *chunks)


def chrm(*numbers: float) -> tuple[bytes, bytes]:
    return b"cHRM", struct.pack(">8I", *(round(1e5 * n) for n in numbers))


P3_XY, SRGB_XY = (0.68, 0.32, 0.265, 0.69, 0.15, 0.06), (0.64, 0.33, 0.3, 0.6, 0.15, 0.06)
D65 = (0.3127, 0.329)
GAMA = b"gAMA", struct.pack(">I", 45455)


@pytest.mark.parametrize(
    ("chunks", "colorants"),
    [
        ([(b"cICP", bytes([12, 13, 0, 1])), iccp(ADOBE)], P3_XYZ),
        ([(b"cICP", bytes([12, 1, 0, 1]))], P3_XYZ),
        ([(b"cICP", bytes([1, 13, 0, 1])), iccp(ADOBE)], None),
        ([iccp(P3), (b"sRGB", b"\1")], P3_XYZ),
        ([(b"sRGB", b"\1"), GAMA, chrm(*D65, *P3_XY)], None),
        ([GAMA], None),
        ([chrm(*D65, *P3_XY)], None),
        ([GAMA, chrm(*D65, *SRGB_XY)], None),
    ],
    ids=["cICP", "cICP of video", "cICP of sRGB", "iCCP", "sRGB", "gAMA", "cHRM", "sRGB by both"],
)
def test_a_png_says_its_colours_as_to_browsers(
    chunks: list[tuple[bytes, bytes]], colorants: tuple[tuple[float, ...], ...] | None
) -> None:
    pixels = decode(png(*chunks))
    assert_close(pixels, by_hand(PATCHES, colorants) if colorants else PATCHES.astype(float))


def test_a_png_of_gamma_and_primaries_is_converted() -> None:
    pixels = decode(png(GAMA, chrm(*D65, *P3_XY)))
    assert_close(pixels, by_hand(PATCHES, P3_XYZ, 2.2), 2)


@pytest.mark.parametrize(("code", "white", "level"), [(16, 148, 203), (18, 191, 203)])
def test_hdr_is_shown_with_its_reference_white(code: int, white: int, level: float) -> None:
    """ITU-R BT.2408: 203 cd/m² stand at 58 % of PQ and at 75 % of HLG."""
    grey = np.full((64, 64, 3), white, np.uint8)
    pixels = decode(with_chunks(encode(grey, "PNG"), (b"cICP", bytes([9, code, 0, 1]))))
    assert abs(int(pixels[0, 0, 0]) - 255) <= 4
    dark = decode(with_chunks(encode(grey // 2, "PNG"), (b"cICP", bytes([9, code, 0, 1]))))
    assert 20 < dark[0, 0, 0] < 140


BROKEN = {
    "empty": b"",
    "cut": P3[:300],
    "too large": P3 + bytes(MAX_PROFILE_BYTES),
    "no profile": b"\0" * 16 + b"RGB " + bytes(200),
    "of inks": inks_profile(),
    "of grey": GREY_18,
    "a link": P3[:12] + b"link" + P3[16:],
    "without curves": profile({b"wtpt": xyz((0.9642, 1, 0.8249))}),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_broken_profile_is_ignored_and_noted(name: str, kind: str) -> None:
    icc = BROKEN[name]
    if not icc and kind != "PNG":
        return
    plain = encode(PIXELS, kind)
    data = with_chunks(plain, iccp(icc)) if kind == "PNG" else encode(PIXELS, kind, icc_profile=icc)
    pixels, notes = decode_noted(data)
    np.testing.assert_array_equal(pixels, decode(plain))
    assert notes == {"profile-ignored"} or (name == "too large" and kind == "JPEG" and not notes)


def test_a_jpeg_whose_parts_of_a_profile_do_not_fit_is_read_without() -> None:
    plain = encode(PIXELS)
    for parts in ([(1, 2)], [(2, 2), (1, 3)], [(0, 1)], [(1, 1), (2, 1)]):
        segments = b""
        for number, count in parts:
            body = b"ICC_PROFILE\0" + bytes([number, count]) + P3
            segments += b"\xff\xe2" + struct.pack(">H", len(body) + 2) + body
        pixels, notes = decode_noted(plain[:2] + segments + plain[2:])
        np.testing.assert_array_equal(pixels, decode(plain))
        assert notes == {"profile-ignored"}
    halves = b""
    for number, part in ((2, P3[200:]), (1, P3[:200])):  # in any order
        body = b"ICC_PROFILE\0" + bytes([number, 2]) + part
        halves += b"\xff\xe2" + struct.pack(">H", len(body) + 2) + body
    assert stored_colours(plain[:2] + halves + plain[2:], "JPEG").profile == P3


def test_mutants_of_profiles_never_end_a_decoder() -> None:
    """200 of them, in RGB, grey and inks; each is used or ignored, soon, without a warning."""
    rng = np.random.default_rng(0)
    kinds = [(P3, "RGB"), (ADOBE, "RGB"), (GREY_18, "L")] * 3 + [(inks_profile(), "CMYK")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(200):
            icc, space = kinds[number % 10]
            mutant = bytearray(icc)
            for at in rng.integers(0, len(mutant), rng.integers(1, 9)):
                mutant[at] = rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))])
            if number % 7 == 0:
                mutant = mutant[: rng.integers(1, len(mutant))]
            started = time.perf_counter()
            found = conversion.__wrapped__(bytes(mutant), space)
            assert time.perf_counter() - started < 5
            if found.convert and space != "CMYK":
                shape = (3, 4, 3) if space == "RGB" else (3, 4)
                made = found.convert(np.zeros(shape, np.uint8))
                assert made.shape == (3, 4, 3)
                assert made.dtype == np.uint8


def test_a_chain_of_many_elements_is_not_gone_through() -> None:
    """Each colour would go through thousands of curves, for minutes."""
    curves = struct.pack(">4sIHHI", b"cvst", 0, 3, 3, 0)
    chain = struct.pack(">4sIHHI", b"mpet", 0, 3, 3, 50_000) + curves * 50_000
    tags = {b"wtpt": xyz((0.9642, 1, 0.8249)), b"D2B1": chain}
    tags |= {bytes([c]) + b"XYZ": xyz(v) for c, v in zip(b"rgb", P3_XYZ, strict=True)}
    tags |= {bytes([c]) + b"TRC": srgb_curve() for c in b"rgb"}
    started = time.perf_counter()
    found = conversion(profile(tags), "RGB").convert
    assert time.perf_counter() - started < 5
    assert found
    assert_close(found(PATCHES.copy()), by_hand(PATCHES, P3_XYZ))


def heic(pixels: NDArray[np.uint8], **options: object) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=95, chroma=444, **options)
    return file.getvalue()


@pytest.mark.parametrize("box", ["prof", "nclx"])
def test_a_heic_photo_of_a_phone_is_srgb(box: str) -> None:
    options: dict[str, object] = {"icc_profile": P3} if box == "prof" else {}
    if box == "nclx":
        options = {"color_primaries": 12, "transfer_characteristics": 13, "save_nclx_profile": True}
    data = heic(PATCHES, **options)
    stored, none = decode_heic(data, decoding="as-stored")
    pixels, notes = decode_heic(data)
    assert_close(pixels, by_hand(stored, P3_XYZ))
    assert (notes, none) == ({"colours-converted"}, set())
    assert np.abs(stored.astype(int) - PATCHES).mean() < 4
    assert decode_heic(heic(PATCHES))[1] == set()


def test_further_images_of_a_file_are_left_out_and_noted() -> None:
    plain = encode(PIXELS)
    body = b"MPF\0" + b"MM\0*" + bytes(20)
    several = plain[:2] + b"\xff\xe2" + struct.pack(">H", len(body) + 2) + body + plain[2:] + plain
    pixels, notes = decode_noted(several)
    np.testing.assert_array_equal(pixels, decode(plain))
    assert notes == {"images-left-out"}
