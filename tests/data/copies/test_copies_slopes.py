"""Gradient agreement of two images in one frame: of one thing, of two, and under shared words."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from skindx.data.copies.alignment import Aligned
from skindx.data.copies.slopes import slopes

SIDE = 120
EVEN = np.eye(3)[:2]
Y, X = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)


def laid(first_HW: NDArray[np.float32], second_HW: NDArray[np.float32], shown=None) -> Aligned:
    shown_HW = np.ones((SIDE, SIDE), np.bool_) if shown is None else shown
    return Aligned(first_HW, second_HW, shown_HW, EVEN, EVEN, 1.0)


def skin(seed: int) -> NDArray[np.float32]:
    """Return smooth texture whose gradients are a few grey levels a pixel."""
    noise_HW = np.random.default_rng(seed).normal(0, 1, (SIDE, SIDE)).astype(np.float32)
    blurred_HW = cv2.GaussianBlur(noise_HW, (0, 0), 5.0)
    return np.asarray(110 + 25 * blurred_HW / blurred_HW.std(), np.float32)


def lettered(field_HW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Write white words over half of the image, as a watermark does."""
    shown_HW = np.ascontiguousarray(field_HW.clip(0, 255).astype(np.uint8))
    for row in range(8, SIDE, 14):
        cv2.putText(shown_HW, "derma atlas", (1, row), 0, 0.55, 255, 1, cv2.LINE_AA)
    return shown_HW.astype(np.float32)


def test_ramps_agree_by_the_cosine_of_their_angle() -> None:
    angle = np.pi / 3
    turned_HW = np.asarray(4 * (np.cos(angle) * X + np.sin(angle) * Y), np.float32)
    found = slopes(laid(np.asarray(4 * X, np.float32), turned_HW))
    assert found.edges == pytest.approx(np.cos(angle), abs=0.01)


def test_one_image_in_another_light_agrees() -> None:
    found = slopes(laid(skin(1), 0.7 * skin(1) + 40))
    assert min(found) > 0.97


def test_two_images_do_not_agree() -> None:
    found = slopes(laid(skin(1), skin(2)))
    assert abs(found.edges) < 0.3
    assert abs(found.beneath) < 0.3
    assert found.upheld < 0.3


def test_shared_words_do_not_hide_that_images_differ() -> None:
    one, other = lettered(skin(1)), lettered(skin(2))
    correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
    found = slopes(laid(one, other))
    assert correlation > 0.5  # the words are what varies most
    assert found.beneath < 0.5
    copy = slopes(laid(skin(1), lettered(skin(1))))
    assert copy.beneath > found.beneath + 0.3


def test_a_frame_has_the_say_of_its_area() -> None:
    wide = 20
    one, other = (cv2.copyMakeBorder(skin(n)[wide:-wide, wide:-wide], *[wide] * 4, 0, value=250)
                  for n in (1, 2))  # fmt: skip
    found = slopes(laid(one, other))
    assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.9
    assert found.upheld < 0.6
    assert found.edges < 0.7


def test_smooth_images_and_the_smallest_overlap_say_nothing_that_ends_in_an_error() -> None:
    flat_HW = np.full((SIDE, SIDE), 80, np.float32)
    assert slopes(laid(flat_HW, skin(1))) == pytest.approx((0, 0, 0), abs=0.05)
    shown_HW = np.zeros((SIDE, SIDE), np.bool_)
    shown_HW[:20, :20] = True
    found = slopes(laid(skin(1), skin(1), shown_HW))
    assert np.isfinite(found).all()
    assert found.edges > 0.5


def test_the_order_of_the_two_changes_nothing() -> None:
    one, other = skin(1), lettered(skin(1))
    assert slopes(laid(one, other)) == pytest.approx(slopes(laid(other, one)), abs=1e-5)
