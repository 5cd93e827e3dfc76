"""Copies and shared overlays: seeded, in every orientation, and of the shapes that they claim."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.imaging.decode import decode
from skindx_bench.data.clean_plants import OTHER_OVERLAYS, drawing
from skindx_bench.data.copy_variants import KINDS, MIRRORED, OVERLAYS, make_copy, oriented

EVERY_OVERLAY = {**OVERLAYS, **OTHER_OVERLAYS}
FIRST, SECOND = (paint(CLASSES[index], 0).pixels for index in (0, 5))


def made(kind: str, pixels: NDArray[np.uint8], number: int = 0) -> NDArray[np.int64]:
    return decode(make_copy(kind, pixels, number)).astype(np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_the_same_every_time_and_differs_by_number(kind: str) -> None:
    copies = [make_copy(kind, FIRST, number, seed=4) for number in (0, 0, 1)]
    assert copies[0] == copies[1] != copies[2]
    assert make_copy(kind, SECOND, 0, seed=4) != copies[0]


@given(height=st.integers(24, 90), width=st.integers(24, 90), number=st.integers(0, 30))
@settings(max_examples=10)
def test_every_kind_copies_images_of_any_shape(height: int, width: int, number: int) -> None:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    for kind in KINDS:
        assert decode(make_copy(kind, pixels, number)).ndim == 3
    for overlay in EVERY_OVERLAY.values():
        laid = overlay(pixels, number)
        assert laid.dtype == np.uint8
        assert all(new >= old for new, old in zip(laid.shape, pixels.shape, strict=True))


def test_eight_orientations_and_the_mirrored_ones() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    turned = [oriented(pixels, number) for number in range(8)]
    assert len({image.tobytes() for image in turned}) == 8
    turns = [np.rot90(pixels, times).tobytes() for times in range(4)]
    mirrored = [number for number in range(8) if turned[number].tobytes() not in turns]
    assert tuple(mirrored) == MIRRORED


def test_eight_copies_in_a_row_have_every_orientation() -> None:
    for number in range(8):
        shown = made("strong_jpeg", FIRST, number)
        wanted = oriented(FIRST, number)
        assert shown.shape == wanted.shape
        assert abs(shown - wanted).mean() < 12
        others = [oriented(FIRST, other) for other in range(8) if other != number]
        apart = [abs(shown - other).mean() for other in others if other.shape == shown.shape]
        assert min(apart) > abs(shown - wanted).mean()


@pytest.mark.parametrize(("kind", "share"), [("crop_5", 0.95), ("crop_10", 0.9), ("crop_20", 0.8)])
def test_a_crop_keeps_its_share_of_both_sides(kind: str, share: float) -> None:
    height, width = FIRST.shape[:2]
    assert made(kind, FIRST).shape == (round(share * height), round(share * width), 3)


def test_a_mirrored_crop_is_always_mirrored() -> None:
    height, width = (round(0.9 * side) for side in FIRST.shape[:2])
    shapes = [made("mirrored_crop", FIRST, number).shape[:2] for number in range(4)]
    assert shapes == [(height, width), (height, width), (width, height), (width, height)]


def test_turns_open_corners_only_where_they_say_so() -> None:
    even = np.full((120, 160, 3), 128, np.uint8)
    for degrees in (3, 7):
        assert abs(made(f"turn_{degrees}", even) - 128).max() <= 2
        with_corners = made(f"turn_{degrees}_corners", even)
        assert with_corners.shape == even.shape
        assert abs(with_corners - 128).max() > 100


def test_half_size_border_and_caption_by_hand() -> None:
    height, width = FIRST.shape[:2]
    assert made("half_jpeg", FIRST).shape == (height // 2, width // 2, 3)
    framed = made("border_white", FIRST)
    wide = (framed.shape[0] - height) // 2
    assert 0.05 * min(height, width) < wide < 0.13 * min(height, width)
    assert (framed[: wide - 2] > 240).all()
    inside = framed[wide : wide + height, wide : wide + width]
    assert abs(inside - FIRST.astype(np.int64)).mean() < 6
    captioned = made("caption", FIRST)
    assert captioned.shape[0] > height
    assert abs(captioned[:height] - FIRST.astype(np.int64)).mean() < 6


@pytest.mark.parametrize("overlay", EVERY_OVERLAY)
def test_an_overlay_is_that_of_its_site_and_lies_on_any_image(overlay: str) -> None:
    lay = EVERY_OVERLAY[overlay]
    black, white = (np.full((150, 200, 3), level, np.uint8) for level in (60, 190))
    np.testing.assert_array_equal(lay(black, 0), lay(black.copy(), 0))
    assert not np.array_equal(lay(black, 0), lay(black, 1))
    same = (lay(black, 0) == lay(white, 0)).all(axis=2)
    changed = lay(black, 0).shape != black.shape or (lay(black, 0) != black).any()
    assert changed
    if overlay not in {"watermark", "tiled", "stamp", "reticle"}:  # the image shines through
        assert same.sum() > 0.02 * same.size
    assert (black == 60).all()


def test_a_drawing_is_seeded() -> None:
    one, again, other = (drawing(np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_an_unknown_kind_names_the_valid_ones() -> None:
    with pytest.raises(UserError, match=r"'crop_50'; choose one of crop_5,"):
        make_copy("crop_50", FIRST, 0)
