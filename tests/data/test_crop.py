"""Windows, resizing, and decoding at a smaller scale."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_images import jpeg, photo

from skindx.data.loader.crops import Window, random_window, resize_into
from skindx.imaging.decode import decode
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.resize import shrink


@given(
    height=st.integers(1, 2000),
    width=st.integers(1, 2000),
    low=st.floats(0.05, 1),
    seed=st.integers(0, 2**32),
)
def test_a_window_lies_inside(height: int, width: int, low: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    window = random_window(height, width, (low, 1.0), (0.8, 1.25), rng)
    assert window.top >= 0
    assert window.left >= 0
    assert window.top + window.height <= 1 + 1e-9
    assert window.left + window.width <= 1 + 1e-9
    aspect = window.width * width / (window.height * height)
    assert 0.8 - 1e-9 <= aspect <= 1.25 + 1e-9
    if 0.8 <= width / height <= 1.25:
        assert window.height * window.width >= low - 1e-9
    rows, columns = window.cut(np.zeros((height, width, 3), np.uint8)).shape[:2]
    assert 1 <= rows <= height
    assert 1 <= columns <= width


def test_windows_cover_the_image_evenly() -> None:
    rng = np.random.default_rng(0)
    windows = [random_window(300, 300, (0.25, 0.25), (1.0, 1.0), rng) for _ in range(2000)]
    assert {round(window.height, 6) for window in windows} == {0.5}
    assert np.mean([window.top for window in windows]) == pytest.approx(0.25, abs=0.01)
    assert np.mean([window.left for window in windows]) == pytest.approx(0.25, abs=0.01)


def test_a_strip_gives_its_middle() -> None:
    window = random_window(100, 1000, (0.9, 1.0), (0.8, 1.25), np.random.default_rng(0))
    assert window == Window(0.0, pytest.approx(0.4375), 1.0, pytest.approx(0.125))


@pytest.mark.parametrize("size", [(100, 130), (301, 200), (64, 64), (20, 30), (128, 129)])
def test_resizing_writes_in_place(size: tuple[int, int]) -> None:
    import cv2

    image = photo(*size)
    batch = np.zeros((3, 64, 64, 3), np.uint8)
    resize_into(image, batch[1])
    halved = image.astype(np.float64)
    for axis in (0, 1):
        while halved.shape[axis] > 128:  # the means of pairs; what has no partner is left out
            even = np.swapaxes(halved, 0, axis)[: halved.shape[axis] // 2 * 2]
            halved = np.swapaxes((even[::2] + even[1::2]) / 2, 0, axis)
    expected = cv2.resize(halved, (64, 64), interpolation=cv2.INTER_LINEAR)
    # Bilinear weights are rounded otherwise than OpenCV's: see tests/imaging/test_resize.py.
    assert np.abs(batch[1] - expected).max() <= (1 if max(size) <= 128 else 2)
    assert not batch[0].any()
    assert not batch[2].any()


# decoding no larger than needed


def test_a_large_image_is_decoded_smaller_but_large_enough() -> None:
    data = jpeg(photo(800, 1200))
    assert decode(data).shape == (800, 1200, 3)
    assert decode(data, at_least=(100, 100)).shape == (100, 150, 3)
    assert decode(data, at_least=(101, 100)).shape == (200, 300, 3)
    assert decode(data, at_least=(900, 100)).shape == (800, 1200, 3)
    # 7/8 would do, but takes longer than all of it.
    assert decode(data, at_least=(690, 1000)).shape == (800, 1200, 3)


def test_an_upright_image_has_its_own_sides() -> None:
    import io

    from PIL import Image

    exif = Image.Exif()
    exif[274] = 6
    out = io.BytesIO()
    Image.fromarray(photo(600, 1200)).save(out, "jpeg", exif=exif, quality=92)
    whole = decode(out.getvalue())
    small = decode(out.getvalue(), at_least=(300, 150))
    assert whole.shape == (1200, 600, 3)
    assert small.shape == (300, 150, 3)
    assert np.abs(shrink(whole, 150).astype(int) - small).mean() < 2


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\xff\xfe\x00\x09comment",
        b"\xff\xff\xff\xfe\x00\x06\xff\xda\xff\xe1",
        b"\xff\xe2\x00\x02",
    ],
)
@pytest.mark.parametrize("orientation", [None, 1, 3, 6])
def test_metadata_is_found_behind_other_segments(before: bytes, orientation: int | None) -> None:
    import io

    from PIL import Image

    exif = Image.Exif()
    if orientation:
        exif[274] = orientation
    out = io.BytesIO()
    Image.fromarray(photo(60, 90)).save(out, "jpeg", exif=exif)
    data = out.getvalue()
    plain = decode(jpeg(photo(60, 90))).shape
    turned = decode(data[:2] + before + data[2:])
    assert turned.shape == (plain if orientation != 6 else (90, 60, 3))
    if orientation == 3:
        exif[274] = 1
        out = io.BytesIO()
        Image.fromarray(photo(60, 90)).save(out, "jpeg", exif=exif)
        assert (turned == decode(out.getvalue())[::-1, ::-1]).all()


@given(height=st.integers(230, 900), width=st.integers(230, 900), seed=st.integers(0, 99))
def test_a_crop_decoded_small_looks_as_one_of_the_whole(height: int, width: int, seed: int) -> None:
    import cv2

    image = photo(height, width, seed)
    data = jpeg(image)
    rng = np.random.default_rng(seed)
    window = random_window(height, width, (0.3, 1.0), (0.8, 1.25), rng)
    ours = np.empty((96, 96, 3), np.uint8)
    resize_into(window.cut(decode(data, at_least=window.needs(96, 96))), ours)
    theirs = cv2.resize(window.cut(decode(data)), (96, 96), interpolation=cv2.INTER_AREA)
    error = np.square(ours.astype(float) - theirs).mean()
    assert 10 * np.log10(255**2 / max(error, 1e-9)) > 28


def test_damage_is_found_at_every_scale() -> None:
    data = bytearray(jpeg(photo(800, 1200)))
    data[len(data) // 2 : len(data) // 2 + 400] = b"\xff\xd9" * 200
    for at_least in (None, (100, 100), (300, 300), (700, 700)):
        with pytest.raises(DamagedImage):
            decode(bytes(data), at_least=at_least)


# sources


def test_the_smallest_image_of_a_window_has_enough_pixels_in_it() -> None:
    window = Window(0.1, 0.2, 0.3, 0.7)
    assert window.needs(100, 100) == (334, 143)
