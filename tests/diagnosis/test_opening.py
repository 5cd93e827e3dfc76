"""Opening a photo: by content, within limits, upright, at the scale that is needed."""

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hostile_images import chunk_bomb
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from skin_photo import skin_photo, skin_pixels

from skindx.api.predictions import iter_predictions
from skindx.diagnosis import photo_checks
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.photo_checks import LONGEST_SIDE, VIEW_QUALITY, Refused, open_photo
from skindx.diagnosis.predictor import Predictor
from skindx.imaging.decode import decode
from skindx.imaging.image_formats import DamagedImage, photo_format
from skindx.imaging.resize import small_jpeg
from skindx.imaging.sandboxed_images import decode_heic
from skindx.workers.worker_process import SandboxLimits


@pytest.fixture(scope="module")
def large() -> bytes:
    return simplejpeg.encode_jpeg(skin_pixels(3000, 2000), quality=85)


def test_a_large_jpeg_comes_smaller_yet_no_smaller_than_it_is_shown(large: bytes) -> None:
    opened = open_photo(large, needed=250)
    assert (opened.width, opened.height) == (3000, 2000)
    height, width, _ = opened.pixels_HWC.shape
    assert 1280 <= width < 3000
    assert width / height == pytest.approx(1.5, rel=0.01)
    whole_HWC = open_photo(large).pixels_HWC
    assert whole_HWC.shape == (2000, 3000, 3)
    shown, exact = (
        decode(small_jpeg(image_HWC, LONGEST_SIDE, quality=VIEW_QUALITY)).astype(float)
        for image_HWC in (opened.pixels_HWC, whole_HWC)
    )
    assert np.abs(shown - exact).mean() < 1.5


def test_judges_that_need_more_get_more(large: bytes) -> None:
    assert min(open_photo(large, needed=1200).pixels_HWC.shape[:2]) >= 1200
    assert open_photo(large, needed=5000).pixels_HWC.shape == (2000, 3000, 3)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_photo_is_turned_upright_at_any_scale(orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    data = skin_photo(2700, 1800, exif=exif)
    opened, whole = open_photo(data, needed=100), open_photo(data)
    size = (1800, 2700) if orientation in (6, 8) else (2700, 1800)
    assert (opened.width, opened.height) == (whole.width, whole.height) == size
    height, width, _ = opened.pixels_HWC.shape
    assert width < opened.width
    assert (width > height) == (opened.width > opened.height)
    small_HWC = np.asarray(Image.fromarray(whole.pixels_HWC).resize((width, height)))
    assert np.abs(small_HWC.astype(float) - opened.pixels_HWC).mean() < 4


@pytest.mark.parametrize("needed", [None, 250])
def test_damage_in_mid_stream_is_found_at_any_scale(large: bytes, needed: int | None) -> None:
    damaged = bytearray(large)
    middle = len(large) // 2
    damaged[middle : middle + 200] = bytes(200)
    for data in (bytes(damaged), large[:-5000]):
        with pytest.raises(Refused, match="damaged") as caught:
            open_photo(data, needed=needed)
        assert caught.value.gate == "unreadable"


def test_a_jpeg_of_endless_passes_is_refused() -> None:
    progressive = skin_photo(progressive=True)
    assert open_photo(progressive).width == 240
    last = progressive.rindex(b"\xff\xda")
    with pytest.raises(Refused, match="too many passes"):
        open_photo(progressive[:-2] + 200 * progressive[last:-2] + b"\xff\xd9")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_photo_of_many_pixels_is_kept_at_a_smaller_scale(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (5000, 3000), (205, 160, 135)).save(file, kind)
    opened = open_photo(file.getvalue())
    assert (opened.width, opened.height) == (5000, 3000)
    height, width, _ = opened.pixels_HWC.shape
    assert 0.95 * photo_checks.MAX_KEPT_PIXELS < height * width <= photo_checks.MAX_KEPT_PIXELS
    assert width / height == pytest.approx(5 / 3, rel=0.01)


@given(st.binary(max_size=64))
def test_no_bytes_at_all_crash_the_opening(data: bytes) -> None:
    for head in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF1234WEBP"):
        with pytest.raises(Refused):
            open_photo(head + data)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"\xff\xd8\xff\xe0", "JPEG"),
        (b"\x00\x00\x00\x18ftypheic", "HEIC"),
        (b"\x00\x00\x00\x18ftypmif1", "HEIC"),
        (b"\x00\x00\x00\x18ftypavif", None),
        (b"\x00\x00\x00\x18ftypmp42", None),
        (b"GIF89a", None),
        (b"BM", None),
        (b"", None),
    ],
)
def test_the_first_bytes_decide(head: bytes, expected: str | None) -> None:
    assert photo_format(head) == expected


def heic(width: int = 240, height: int = 180, *, quality: int = 90, **options: object) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    photo = Image.fromarray(skin_pixels(width, height))
    pillow_heif.from_pillow(photo).save(file, quality=quality, **options)
    return file.getvalue()


def test_a_heic_photo_is_read_in_a_child_and_never_stands_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened = open_photo(heic())
    assert opened.pixels_HWC.shape == (180, 240, 3)
    assert np.abs(opened.pixels_HWC.astype(float) - skin_pixels()).mean() < 6
    assert list(tmp_path.iterdir()) == []


def test_a_turned_heic_photo_is_upright() -> None:
    exif = Image.Exif()
    exif[274] = 6
    opened = open_photo(heic(exif=exif.tobytes()))
    assert (opened.width, opened.height) == (180, 240)


def test_a_damaged_heic_photo_is_refused() -> None:
    with pytest.raises(Refused, match="damaged or cut short") as caught:
        open_photo(heic()[:-900])
    assert caught.value.gate == "unreadable"


def test_a_heic_photo_above_the_cap_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(DamagedImage, match="240 x 180 pixels") as caught:
        decode_heic(heic(), max_pixels=1000)
    assert caught.value.reason == "too-many-pixels"


def test_a_heic_decoder_without_memory_or_time_costs_only_its_photo() -> None:
    short = decode_apart_reason(
        heic(2000, 1500, quality=10), SandboxLimits(timeout_s=15, memory_mb=24)
    )
    assert short in ("decode-memory", "decode-crash", "damaged")
    assert open_photo(heic()).width == 240


def decode_apart_reason(data: bytes, limits: SandboxLimits) -> str:
    with pytest.raises(DamagedImage) as caught:
        decode_heic(data, limits=limits)
    return caught.value.reason


def test_without_pillow_heif_a_heic_photo_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pillow_heif" else real(name)
    )
    with pytest.raises(Refused, match=r"the extra `serve`"):
        open_photo(b"\x00\x00\x00\x18ftypheic" + bytes(100))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_process_of_its_own_opens_a_photo_as_this_one_does(kind: str) -> None:
    file = io.BytesIO()
    Image.fromarray(skin_pixels(1800, 1500)).save(file, kind)
    data = file.getvalue()
    here, apart = (open_photo(data, needed=100, apart=apart) for apart in (False, True))
    assert np.array_equal(here.pixels_HWC, apart.pixels_HWC)
    assert (here.width, here.height, here.notes) == (apart.width, apart.height, apart.notes)
    said = []
    for apart in (False, True):
        with pytest.raises(Refused) as refused:
            open_photo(data[:500], apart=apart)
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_a_photo_has_a_limit_of_time_at_every_door_of_a_program(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photo_checks, "LIMITS", SandboxLimits(timeout_s=1, memory_mb=800))
    predictor = Predictor.load(tiny_bundle)
    slow = chunk_bomb()
    with pytest.raises(Refused, match="took longer than 1 s"):
        answer(predictor, Case((slow,)))
    (row,) = (row for batch in iter_predictions(predictor, [slow]) for row in batch.to_pylist())
    assert row["refused"] == "unreadable"
    assert "took longer than 1 s" in row["reason"]
