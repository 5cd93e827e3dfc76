"""Detail, not pixels, decides which of several duplicates stays."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from paint_pictures import encode, paint

from skindx.data.dedup.select import LabelledImage, deduplicate, distinct
from skindx.data.ledger import LedgerRow
from skindx.data.screening.resolution import effective_pixels, worth
from skindx.data.screening.screen import ScreenSettings, screen_bytes


def resized(pixels: NDArray[np.uint8], factor: float, how: int) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=how), np.uint8)


def picture(name: str, pixels: NDArray[np.uint8], quality: int) -> LabelledImage:
    data = encode(pixels, quality=quality)
    screened = screen_bytes(data, ScreenSettings(), ("perceptual", "difference"))
    assert screened.reason is None
    row = LedgerRow(name, "acne", "stored", sha256=screened.sha256, size_bytes=len(data))
    return LabelledImage(row, "acne", screened)


def best(*pictures: LabelledImage) -> str:
    """Return the one that stays when all are near duplicates."""
    same = distinct(list(pictures))
    links = [(i, j, 0) for i in range(len(same)) for j in range(i + 1, len(same))]
    (kept,) = deduplicate(same, np.array(links, np.int64), 4).kept
    return kept.row.url


@pytest.mark.parametrize("how", [cv2.INTER_LINEAR, cv2.INTER_CUBIC, cv2.INTER_LANCZOS4])
def test_an_original_wins_over_its_enlargements(how: int) -> None:
    original = paint(1, 240, 180)
    larger = [
        picture(f"{factor}-{quality}", resized(original, factor, how), quality)
        for factor in (1.5, 2, 3)
        for quality in (75, 95)
    ]
    assert best(picture("original", original, 90), *larger) == "original"


def test_repeated_pixels_are_no_detail() -> None:
    original = paint(2, 240, 180)
    larger = [picture(f"{n}", resized(original, n, cv2.INTER_NEAREST), 90) for n in (2, 3)]
    assert best(picture("original", original, 90), *larger) == "original"


def test_a_larger_image_wins_where_it_shows_more() -> None:
    original = paint(3, 480, 360)
    small = [
        picture(f"{factor}", resized(original, factor, cv2.INTER_AREA), 95)
        for factor in (0.8, 0.5, 0.3)
    ]
    rough = picture("rough", original, 20)
    assert best(picture("original", original, 90), *small, rough) == "original"


def test_the_measure_is_at_least_one_and_at_most_all_pixels() -> None:
    for shape in ((1, 1), (1, 9), (9, 1), (2, 2), (64, 64)):
        even = np.full(shape, 128, np.uint8)
        assert effective_pixels(even) == 1
        noise = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        assert 1 <= effective_pixels(noise) <= noise.size
    assert worth(100, 100) == 100
    assert worth(100, 400) < 100
