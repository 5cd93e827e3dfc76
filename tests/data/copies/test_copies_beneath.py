"""Gradient agreement beneath overlays: of one thing, of two, and under shared words."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from skindx.data.copies.geometry import Aligned
from skindx.data.copies.overlap import beneath

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
    turned_HW = np.asarray(2 * (np.cos(angle) * X + np.sin(angle) * Y) % 256, np.float32)
    straight_HW = np.asarray(2 * X, np.float32)
    inside = (turned_HW < 250) & (straight_HW < 250)
    found = beneath(laid(straight_HW, turned_HW, cv2.erode(inside.astype(np.uint8), None) > 0))
    assert found == pytest.approx(np.cos(angle), abs=0.05)


def test_one_image_in_another_light_agrees() -> None:
    assert beneath(laid(skin(1), 0.7 * skin(1) + 40)) > 0.97


def test_two_images_do_not_agree() -> None:
    assert abs(beneath(laid(skin(1), skin(2)))) < 0.3


def test_shared_words_do_not_hide_that_images_differ() -> None:
    one, other = lettered(skin(1)), lettered(skin(2))
    assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.5  # the words are what varies most
    assert beneath(laid(one, other)) < 0.5
    assert beneath(laid(skin(1), lettered(skin(1)))) > beneath(laid(one, other)) + 0.3


def test_a_frame_has_the_say_of_its_area() -> None:
    inner = (slice(20, -20), slice(20, -20))
    one, other = (np.full((SIDE, SIDE), 250, np.float32) for _ in range(2))
    one[inner], other[inner] = skin(1)[inner], skin(2)[inner]
    assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.9
    assert beneath(laid(one, other)) < 0.7


def test_smooth_images_and_the_smallest_overlap_end_in_no_error() -> None:
    flat_HW = np.full((SIDE, SIDE), 80, np.float32)
    assert beneath(laid(flat_HW, skin(1))) == pytest.approx(0, abs=0.05)
    shown_HW = np.zeros((SIDE, SIDE), np.bool_)
    shown_HW[:20, :20] = True
    assert 0.5 < beneath(laid(skin(1), skin(1), shown_HW)) <= 1


def test_the_order_of_the_two_changes_nothing() -> None:
    one, other = skin(1), lettered(skin(1))
    assert beneath(laid(one, other)) == pytest.approx(beneath(laid(other, one)), abs=1e-5)
