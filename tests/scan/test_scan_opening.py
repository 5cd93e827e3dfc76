"""Photos of strangers become pixels on disk, upright, or one sentence and no file."""

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from hostile_images import png, scan_bomb, two_gigapixels
from PIL import Image
from spots import photo_with
from stored_colours import GREY_18, P3

from skindx.core.errors import UserError
from skindx.imaging.decode import decode, turned
from skindx.imaging.image_formats import DamagedImage
from skindx.models.detector import GREY
from skindx.scan import photo_store as limits
from skindx.scan.photo_store import Header, photo_store
from skindx.scan.pixel_store import PixelStore, PixelWriter, level_sizes

PHOTO = photo_with([(200, 150, 20), (420, 300, 9)], 523, 387)


def encoded(kind: str, pixels: np.ndarray = PHOTO, mode: str = "", **options: object) -> bytes:
    stream, image = io.BytesIO(), Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(stream, kind, **options)  # type: ignore[arg-type]
    return stream.getvalue()


def opened(data: bytes, folder: Path, name: str = "photo.jpg") -> PixelStore:
    path = folder / name
    path.write_bytes(data)
    return photo_store(path, folder / f"{name}-store")


def refusal(data: bytes, folder: Path, name: str = "photo.jpg") -> str:
    with pytest.raises(UserError) as error:
        opened(data, folder, name)
    assert [path.name for path in folder.iterdir()] == [name]  # nothing half written
    sentence = str(error.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_a_photo_is_what_every_other_decoder_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    data = encoded("JPEG", quality=95, subsampling=0, exif=exif.tobytes())
    store = opened(data, tmp_path)
    assert store.size() == (387, 523)
    assert np.array_equal(store.read(0, 0, 0, 387, 523), decode(data))
    assert (store.facts["name"], len(store.facts["sha256"])) == ("photo.jpg", 64)
    assert not any(path.stat().st_mode & 0o077 for path in store.folder.glob("*.rgb"))
    again = photo_store(tmp_path / "photo.jpg", store.folder)  # as a scan that goes on
    assert again == store


def test_a_photo_whose_pixels_alone_are_sound_is_taken_as_any_other(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    plain = encoded("JPEG", quality=95, subsampling=0, exif=exif.tobytes())
    for name, odd in {
        "no-end.jpg": plain[:-2],
        "padded.jpg": plain[:-2] + bytes(50) + b"\xff\xd9",
        "revision.jpg": plain.replace(b"JFIF\0\1\1", b"JFIF\0\2\1"),
    }.items():
        store = opened(odd, tmp_path, name)
        assert np.array_equal(store.read(0, 0, 0, *store.size()), decode(plain))
        assert not (store.folder / "plain.jpg").exists()
    (tmp_path / "cut").mkdir()
    assert "damaged or cut short" in refusal(plain[: len(plain) // 2], tmp_path / "cut")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("icc", [P3, GREY_18], ids=["P3", "grey"])
def test_a_scan_sees_the_colours_that_every_decoder_sees(
    kind: str, icc: bytes, tmp_path: Path
) -> None:
    mode = "RGB" if icc is P3 or kind == "WEBP" else "L"
    lossless = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}
    data = encoded(kind, PHOTO, mode, icc_profile=icc, **lossless.get(kind, {}))
    store = opened(data, tmp_path, "photo")
    expected = decode(data)
    assert np.array_equal(store.read(0, 0, 0, 523, 387), expected)
    ignored = mode == "RGB" and icc is GREY_18
    assert store.facts["colours"] == ["profile-ignored" if ignored else "colours-converted"]
    assert (decode(data, decoding="as-stored") != expected).any() != ignored
    older = photo_store(tmp_path / "photo", tmp_path / "older", decoding="as-stored")
    assert np.array_equal(older.read(0, 0, 0, 523, 387), decode(data, decoding="as-stored"))


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_an_orientation_in_xmp_alone_turns_no_scan(kind: str, tmp_path: Path) -> None:
    packet = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6"></x:xmpmeta>'
    options = {"xmp": packet} if kind == "JPEG" else {"tiffinfo": {700: packet}}
    assert opened(encoded(kind, **options), tmp_path, "photo").size() == (523, 387)


def test_a_turned_tiff_is_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    data = encoded("TIFF", exif=exif.tobytes())
    store = opened(data, tmp_path, "photo.tif")
    assert np.array_equal(store.read(0, 0, 0, *store.size()), turned(PHOTO, 6))
    assert np.array_equal(decode(data), turned(PHOTO, 6))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_any_part_of_any_scale_is_upright(tmp_path: Path, orientation: int) -> None:
    writer = PixelWriter(tmp_path, 523, 387)
    for top in range(0, 387, 50):
        writer.write(PHOTO[top : top + 50])
    writer.close({}, orientation)
    store, whole = PixelStore.open(tmp_path), turned(PHOTO, orientation)
    assert store.size() == whole.shape[1::-1]
    part = store.read(0, -5, 40, 60, 30)
    assert np.array_equal(part[:, 5:], whole[40:70, :55])
    assert (part[:, :5] == GREY).all()
    factor, dx, dy = store.to_full(2)
    for x, y in ((0, 0), (31, 17), (60, 40)):
        left, top, side = int(factor * x + dx), int(factor * y + dy), int(factor)
        block = whole[top : top + side, left : left + side].reshape(-1, 3).mean(axis=0)
        assert np.abs(block - store.read(2, x, y, 1, 1)[0, 0]).max() <= 1.5


def test_levels_are_halves_until_little_is_left() -> None:
    assert level_sizes(523, 387)[:3] == [(523, 387), (261, 193), (130, 96)]
    assert level_sizes(40, 30) == [(40, 30)]
    assert all(min(size) >= 1 for size in level_sizes(100_000, 2))


def test_what_cannot_be_scanned_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for number, (data, words) in enumerate(
        [
            (encoded("JPEG")[:3000], "damaged or cut short"),
            (encoded("JPEG", mode="CMYK"), "CMYK"),
            (encoded("PNG", (PHOTO[..., 0].astype(np.uint16) * 256)), "16 bits"),
            (two_gigapixels(), "as no photo does"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert words in refusal(data, folder)


def test_animations_are_refused(tmp_path: Path) -> None:
    other = Image.fromarray(PHOTO[::-1])
    for kind in ("WEBP", "PNG", "TIFF"):
        data = encoded(kind, save_all=True, append_images=[other])
        (tmp_path / kind).mkdir()
        assert "2 images" in refusal(data, tmp_path / kind)


def test_what_is_no_photo_never_meets_a_decoder(tmp_path: Path) -> None:
    for name, data, words in (
        ("a.svg", b"<svg></svg>", "SVG"),
        ("a.gif", encoded("GIF"), "GIF"),
        ("a.bmp", encoded("BMP"), "BMP"),
        ("a.jpg", b"", "The file is empty"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        assert words in refusal(data, folder, name)
    with pytest.raises(UserError, match="does not exist"):
        photo_store(tmp_path / "none.jpg", tmp_path / "store")
    with pytest.raises(UserError, match="is no file"):
        photo_store(tmp_path, tmp_path / "store")


def header(**other: object) -> Header:
    facts = {
        "suffix": ".jpg",
        "size_bytes": 300_000_000,
        "width": 40_000,
        "height": 25_000,
        "pages": 1,
        "bits": 8,
        "colours": "srgb",
        "interlaced": False,
    }
    return Header(**{**facts, **other})  # type: ignore[arg-type]


def test_a_gigapixel_is_taken_and_what_no_memory_holds_is_not() -> None:
    header().check()
    for other, words in (
        ({"interlaced": True}, "jpegtran -copy all"),
        ({"suffix": ".png", "interlaced": True}, "interlaced PNG"),
        ({"suffix": ".webp"}, "vips tiffsave"),
        ({"width": limits.MAX_SIDE + 1, "height": 5000}, "Cut it into parts"),
        ({"width": 60_000, "height": 60_000}, "Cut it into parts"),
        ({"size_bytes": 200_000}, "as no photo does"),
        ({"width": 255, "height": 255}, "skindx diagnose"),
        ({"width": 20_000, "height": 500}, "longer than wide"),
        ({"colours": "lab"}, "sRGB"),
    ):
        with pytest.raises(DamagedImage, match=words):
            header(**other).check()


@pytest.mark.long
def test_bombs_end_in_a_sentence(tmp_path: Path) -> None:
    for number, data in enumerate((scan_bomb(60, 4000), png(9000, 9000, 2, zlib.compress(b"")))):
        (tmp_path / str(number)).mkdir()
        refusal(data, tmp_path / str(number))
