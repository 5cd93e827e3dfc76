"""Detail, not pixels, decides which of several duplicates stays."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from paint_images import encode, paint

from skindx.data.copies.deduplicate import LabelledImage, best_first, deduplicate, distinct
from skindx.data.copies.hash_links import near_graph
from skindx.data.ledger import LedgerRow
from skindx.data.screening.image_measures import NOISE, _medians, effective_pixels, worth
from skindx.data.screening.screen import Screened, ScreenSettings, screen_bytes


def resized(pixels: NDArray[np.uint8], factor: float, how: int) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=how), np.uint8)


def image(name: str, pixels: NDArray[np.uint8], quality: int) -> LabelledImage:
    data = encode(pixels, quality=quality)
    screened = screen_bytes(data, ScreenSettings(), ("perceptual", "difference"))
    assert screened.reason is None
    row = LedgerRow(name, "acne", "stored", sha256=screened.sha256, size_bytes=len(data))
    return LabelledImage(row, "acne", screened)


def best(*images: LabelledImage) -> str:
    """Return the one that stays when all are near duplicates."""
    same = distinct(list(images))
    links = [(i, j, 0) for i in range(len(same)) for j in range(i + 1, len(same))]
    (kept,) = deduplicate(same, np.array(links, np.int64), 4).kept
    return kept.row.url


@pytest.mark.parametrize("how", [cv2.INTER_LINEAR, cv2.INTER_CUBIC, cv2.INTER_LANCZOS4])
def test_an_original_wins_over_its_enlargements(how: int) -> None:
    original = paint(1, 240, 180)
    larger = [
        image(f"{factor}-{quality}", resized(original, factor, how), quality)
        for factor in (1.5, 2, 3)
        for quality in (75, 95)
    ]
    assert best(image("original", original, 90), *larger) == "original"


def test_repeated_pixels_are_no_detail() -> None:
    original = paint(2, 240, 180)
    larger = [image(f"{n}", resized(original, n, cv2.INTER_NEAREST), 90) for n in (2, 3)]
    assert best(image("original", original, 90), *larger) == "original"


@given(st.integers(8, 40), st.integers(2, 10), st.integers(0, 99))
def test_medians_lie_between_those_that_leave_a_pattern_out(
    whole: int, period: int, seed: int
) -> None:
    values_N = np.random.default_rng(seed).exponential(size=whole * period + 3).astype(np.float32)
    phases_PW = values_N[: whole * period].reshape(whole, period).T
    medians_P, half, sorted_N = _medians(phases_PW), (whole - 1) // 2, np.sort(values_N)
    np.testing.assert_array_equal(medians_P, np.median(phases_PW, axis=1))
    assert sorted_N[half] <= medians_P.min()
    assert medians_P.max() <= sorted_N[-1 - half]


def test_a_larger_image_wins_where_it_shows_more() -> None:
    original = paint(3, 480, 360)
    small = [
        image(f"{factor}", resized(original, factor, cv2.INTER_AREA), 95)
        for factor in (0.8, 0.5, 0.3)
    ]
    rough = image("rough", original, 20)
    assert best(image("original", original, 90), *small, rough) == "original"


def test_the_measure_is_at_least_one_and_at_most_all_pixels() -> None:
    for shape in ((1, 1), (1, 9), (9, 1), (2, 2), (64, 64)):
        even = np.full(shape, 128, np.uint8)
        assert effective_pixels(even) == 1
        noise = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        assert 1 <= effective_pixels(noise) <= noise.size
    assert worth(100, 100) == 100
    assert worth(100, 400) < 100


@given(st.floats(0.5, 1.9), st.floats(-10, 10), st.integers(0, 3))
def test_brightness_and_contrast_add_no_detail(gain: float, offset: float, seed: int) -> None:
    original = cv2.cvtColor(paint(seed, 240, 180), cv2.COLOR_RGB2GRAY) * 0.4 + 12
    copy = gain * original + offset
    before, after = (effective_pixels(np.rint(grey).astype(np.uint8)) for grey in (original, copy))
    assert abs(after - before) < NOISE * before


@pytest.mark.parametrize("gain", [0.5, 1.0, 1.9])
@pytest.mark.parametrize("factors", [(1, 1), (1, 2), (3, 1), (2, 4), (2.5, 1.5)])
def test_detail_by_hand(gain: float, factors: tuple[float, float]) -> None:
    """Rows of 20 half cycles and columns of 7 need 21 x 8 pixels, however they are repeated."""
    n_N, m_M = (np.arange(314) + 0.5) / 314, (np.arange(254) + 0.5) / 254
    grey = 128 + gain * 60 * np.cos(7 * np.pi * m_M)[:, None] * np.cos(20 * np.pi * n_N)
    grey = np.rint(grey).astype(np.uint8)
    larger = cv2.resize(grey, None, fx=factors[0], fy=factors[1], interpolation=cv2.INTER_NEAREST)
    assert effective_pixels(np.asarray(larger, np.uint8)) == 21 * 8


def test_within_the_noise_pixels_decide_and_then_bytes() -> None:
    """Whether a copy is brighter does not decide; a loss of detail does."""
    original = paint(4, 240, 180)
    brighter = np.clip(original * 1.08, 0, 255).astype(np.uint8)
    assert best(image("original", original, 95), image("brighter", brighter, 90)) == "original"
    assert best(image("original", original, 90), image("brighter", brighter, 95)) == "brighter"


def test_levels_of_detail_start_at_the_best_of_each_component() -> None:
    def one(name: str, side: int, effective: float, bytes_: int) -> LabelledImage:
        codes_KO = np.zeros((1, 1), np.uint64)
        screened = Screened(None, "", side, side, codes_KO, effective_pixels=effective)
        row = LedgerRow(name, "a", "stored", sha256=name, size_bytes=bytes_)
        return LabelledImage(row, "a", screened)

    same = [
        one("a", 100, 10_000, 5),
        one("b", 100, 9_500, 9),  # within 10 % of a after the penalty: bytes decide
        one("c", 100, 8_000, 99),  # less detail than both
        one("d", 50, 100, 1),  # of no other's component
        one("e", 100, 7_900, 100),  # within 10 % of c, which opened its level
    ]
    links = np.array([(0, 1, 1), (1, 2, 1), (2, 4, 1)], np.int64)
    order = best_first(same, near_graph(5, links, 4))
    assert [same[i].row.url for i in order if i != 3] == ["b", "a", "e", "c"]
