"""What an image shows in the place of skin: what is found, and what must never be."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from foreign_images import FOREIGN
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from skin_photo import TONES, skin_pixels

from skindx.data.synthetic.painter import CLASSES, paint
from skindx.imaging.skin_content import (
    DESCRIPTIONS,
    LIMIT,
    SKIN,
    colour_roughness,
    content_of,
    fill_mask,
    flat_mask,
    line_share,
    not_skin_score,
    roughness,
)


@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_what_is_no_skin_is_found_and_named(kind: str) -> None:
    for seed in range(3):
        found = content_of(FOREIGN[kind](np.random.default_rng(seed)))
        assert found.score >= LIMIT
        assert found.shows in DESCRIPTIONS


@pytest.mark.parametrize(
    ("kind", "shows"),
    [
        ("landscape", "colours"),
        ("letter", "text"),
        ("warm screenshot", "flat"),
        ("speckle", "noise"),
    ],
)
def test_each_is_named_for_what_it_shows(kind: str, shows: str) -> None:
    scores = content_of(FOREIGN[kind](np.random.default_rng(1)))
    assert scores.shows == shows


@pytest.mark.parametrize("skin_type", TONES)
@pytest.mark.parametrize("size", [(90, 70), (240, 180), (1600, 1200)])
def test_skin_of_every_tone_passes_at_every_size(skin_type: int, size: tuple[int, int]) -> None:
    found = content_of(skin_pixels(*size, skin_type=skin_type))
    assert found.score < LIMIT
    assert not found.shows


def test_painted_lesions_pass() -> None:
    flagged = [n for n in range(30) if content_of(paint(CLASSES[n % 10], n).pixels).shows]
    assert flagged == []


def _gentian_violet(skin_HW3: np.ndarray) -> np.ndarray:
    marked = skin_HW3.copy()
    for x in (60, 180, 260):
        cv2.line(marked, (x, 20), (x + 40, 220), (90, 40, 140), 8)
    return marked


def _ruler(skin_HW3: np.ndarray) -> np.ndarray:
    marked = skin_HW3.copy()
    marked[-40:] = 245
    for x in range(0, 320, 6):
        cv2.line(marked, (x, 215), (x, 200 if x % 30 else 235), (20, 20, 20), 1)
    return marked


def _caption(skin_HW3: np.ndarray) -> np.ndarray:
    marked = skin_HW3.copy()
    for row in (200, 216, 232):
        cv2.putText(marked, "Fig. 3 a plate of it", (8, row), 0, 0.5, (255, 255, 255), 1)
    return marked


def _vignette(skin_HW3: np.ndarray) -> np.ndarray:
    y, x = np.mgrid[-1 : 1 : skin_HW3.shape[0] * 1j, -1 : 1 : skin_HW3.shape[1] * 1j]
    return np.where((x**2 + y**2 < 0.6)[..., None], skin_HW3, 0).astype(np.uint8)


def _white_border(skin_HW3: np.ndarray) -> np.ndarray:
    return cv2.copyMakeBorder(skin_HW3, 70, 70, 90, 90, cv2.BORDER_CONSTANT, value=(255, 255, 255))


def _hair(skin_HW3: np.ndarray) -> np.ndarray:
    marked, rng = skin_HW3.copy(), np.random.default_rng(0)
    for _ in range(120):
        x, y = rng.integers(0, 320), rng.integers(0, 240)
        end = (int(x + rng.normal(30, 12)), int(y + rng.normal(18, 12)))
        cv2.line(marked, (int(x), int(y)), end, (45, 30, 25), 1, cv2.LINE_AA)
    return marked


def _erythema(skin_HW3: np.ndarray) -> np.ndarray:
    return (skin_HW3 * np.array((1.1, 0.6, 0.6))).clip(0, 255).astype(np.uint8)


def _drape(skin_HW3: np.ndarray) -> np.ndarray:
    marked = skin_HW3.copy()
    grain = np.random.default_rng(0).normal(0, 5, (240, 190, 1))
    marked[:, :190] = (np.array((40, 110, 120)) + grain).clip(0, 255)
    return marked


@pytest.mark.parametrize("skin_type", TONES)
@pytest.mark.parametrize(
    "change",
    [_gentian_violet, _ruler, _caption, _vignette, _white_border, _hair, _erythema, _drape],
)
def test_what_clinics_do_to_skin_passes(
    skin_type: int, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    skin = skin_pixels(320, 240, skin_type=skin_type)
    assert not content_of(change(skin)).shows


def test_a_fill_is_flat_and_black_white_and_what_stands_beside_it_are_not() -> None:
    pixels = np.full((5, 9, 3), (200, 150, 120), np.uint8)
    pixels[:, 5] = (200, 150, 121)
    pixels[:, 6:] = 255
    filled, flat = np.zeros((5, 9), bool), np.zeros((5, 9), bool)
    filled[:, :4] = flat[:, :4] = True  # the fifth has a neighbour that differs by one level
    flat[:, 7:] = True
    np.testing.assert_array_equal(flat_mask(pixels), flat)
    np.testing.assert_array_equal(fill_mask(pixels, flat), filled)
    black = np.zeros((4, 4, 3), np.uint8)
    assert flat_mask(black).all()
    assert not fill_mask(black, flat_mask(black)).any()


def test_roughness_of_noise_is_eight_ninths_and_of_a_ramp_nothing() -> None:
    noise = np.random.default_rng(0).normal(128, 50, (200, 200)).astype(np.float32)
    assert roughness(noise) == pytest.approx(8 / 9, abs=0.03)
    ramp = np.tile(np.linspace(0, 255, 200, dtype=np.float32), (200, 1))
    assert roughness(ramp) < 0.01
    grey = np.random.default_rng(0).integers(0, 256, (200, 200, 1), np.uint8).repeat(3, axis=2)
    assert colour_roughness(grey) == 0


def test_lines_are_found_upright_and_lying_and_one_line_is_none() -> None:
    page = np.full((160, 224), 230, np.uint8)
    for top in range(4, 156, 8):
        page[top : top + 3] = np.random.default_rng(top).choice([60, 230], 56).repeat(4)
    assert line_share(page) == line_share(np.ascontiguousarray(page.T)) > 0.8
    one = np.full((160, 224), 230, np.uint8)
    one[80:83, ::2] = 60
    assert line_share(one) == 0


@given(arrays(np.uint8, (24, 32, 3), elements=st.integers(0, 255)))
def test_a_score_is_a_share_whatever_the_pixels(pixels: np.ndarray) -> None:
    found = content_of(pixels)
    assert 0 <= found.score <= 1
    assert bool(found.shows) == (found.score >= LIMIT)
    closely = not_skin_score(pixels)
    assert found.score == closely or found == SKIN


@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_the_first_look_lets_nothing_pass_that_the_close_one_finds(kind: str) -> None:
    for seed in range(3, 6):
        pixels = FOREIGN[kind](np.random.default_rng(seed))
        assert (content_of(pixels).score >= LIMIT) == (not_skin_score(pixels) >= LIMIT)


@pytest.mark.parametrize("kind", ["letter", "speckle"])
def test_a_mirrored_or_turned_image_scores_alike(kind: str) -> None:
    pixels = FOREIGN[kind](np.random.default_rng(2))
    for turned in (pixels[:, ::-1], pixels[::-1], pixels.swapaxes(0, 1)):
        assert not_skin_score(np.ascontiguousarray(turned)) == pytest.approx(
            not_skin_score(pixels), abs=0.15
        )
