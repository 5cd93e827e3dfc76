"""The crop around the best box, and how much it counts: by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.box import Box
from skindx.models.combination import best_box, box_crop, box_crops, fit_weight, fuse


def _numbered(height: int, width: int) -> np.ndarray:
    """Return an image whose first two channels tell row and column."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(height)[:, None], np.arange(width)
    return image


@pytest.mark.parametrize(
    ("box", "margin", "expected"),
    [
        ((40, 30, 60, 40), 1.5, (20, 35, 30)),  # side 30 around (50, 35): from row 20, column 35
        ((0, 0, 20, 10), 1.0, (0, 0, 20)),  # would begin at row -5: moved in
        ((90, 70, 100, 80), 2.0, (60, 80, 20)),  # would end outside: moved in
        ((10, 10, 90, 70), 1.5, (0, 10, 80)),  # larger than the image: its shorter side
    ],
)
def test_the_crop_by_hand(
    box: tuple[int, int, int, int], margin: float, expected: tuple[int, int, int]
) -> None:
    crop = box_crop(_numbered(80, 100), Box(*box), margin)
    top, left, side = expected
    assert crop.shape == (side, side, 3)
    assert tuple(crop[0, 0, :2]) == (top, left)


@given(st.integers(1, 90), st.integers(1, 90), st.data())
def test_a_crop_is_a_square_inside_that_holds_the_centre(
    height: int, width: int, data: st.DataObject
) -> None:
    x1, y1 = data.draw(st.floats(0, width - 0.5)), data.draw(st.floats(0, height - 0.5))
    x2 = data.draw(st.floats(x1 + 0.25, width))
    y2 = data.draw(st.floats(y1 + 0.25, height))
    margin = data.draw(st.floats(1, 4))
    crop = box_crop(_numbered(height, width), Box(x1, y1, x2, y2), margin)
    assert crop.shape[0] == crop.shape[1] >= 1
    rows, columns = crop[:, 0, 0].astype(int), crop[0, :, 1].astype(int)
    assert rows[0] - 1 <= (y1 + y2) / 2 <= rows[-1] + 2
    assert columns[0] - 1 <= (x1 + x2) / 2 <= columns[-1] + 2


def test_the_best_box_is_a_sure_one() -> None:
    boxes = [Box(0, 0, 9, 9, score=score) for score in (0.2, 0.7, 0.4)]
    assert best_box(boxes, 0.25) == boxes[1]
    assert best_box(boxes, 0.8) is None
    assert best_box([], 0.0) is None
    crops = box_crops([_numbered(50, 50)] * 3, [(), boxes, boxes[:1]], 0.25, 1.0)
    assert list(crops) == [1]
    assert crops[1].shape == (9, 9, 3)


def test_a_crop_that_is_the_whole_image_is_no_second_view() -> None:
    large, small = Box(5, 5, 45, 45, score=0.9), Box(5, 5, 15, 15, score=0.9)
    images = [_numbered(50, 50), _numbered(50, 50), _numbered(50, 60)]
    crops = box_crops(images, [(large,), (small,), (large,)], 0.25, 1.5)
    assert list(crops) == [1, 2]  # of an image that is no square a strip is left out


def test_fusion_by_hand() -> None:
    whole, crop = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.8, 0.0])
    np.testing.assert_allclose(fuse(whole, crop, 0.25), [0.5, 0.425, 0.075], rtol=1e-12)
    assert fuse(whole, crop, 0.0).tobytes() == whole.tobytes()
    np.testing.assert_array_equal(fuse(whole, crop, 1.0), crop)


def test_the_fitted_weight_by_hand() -> None:
    """One image each way: -log(0.8 - 0.6 w) - log(0.2 + 0.6 w) is least at w = 1/2."""
    whole, crop = np.array([[0.8, 0.2], [0.8, 0.2]]), np.array([[0.2, 0.8], [0.2, 0.8]])
    assert fit_weight(whole, crop, np.array([0, 1])) == pytest.approx(0.5)
    assert fit_weight(whole, crop, np.array([0, 0])) == 0
    assert fit_weight(whole, crop, np.array([1, 1])) == 1
    assert fit_weight(whole, whole, np.array([0, 1])) == 0
    zero = np.array([[1.0, 0.0]])
    assert math.isfinite(fit_weight(zero, zero, np.array([1])))
