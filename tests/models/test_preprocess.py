import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.imaging.resize import shrink
from skindx.models.classifier.preprocess import Preprocess, centre_square

sides = st.integers(20, 300)


@given(height=sides, width=sides, size=st.integers(32, 96))
def test_any_image_becomes_a_square(height: int, width: int, size: int) -> None:
    image = np.zeros((height, width, 3), np.uint8)
    assert centre_square(image, Preprocess(size=size)).shape == (size, size, 3)


@given(height=sides, width=sides, short=st.integers(16, 200))
def test_shrink_keeps_the_aspect(height: int, width: int, short: int) -> None:
    shrunk = shrink(np.zeros((height, width, 3), np.uint8), short)
    assert min(shrunk.shape[:2]) == short
    assert max(shrunk.shape[:2]) == pytest.approx(
        short * max(height, width) / min(height, width), abs=1
    )


def test_the_square_shows_the_centre() -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[:, 95:105] = 255
    square = centre_square(image, Preprocess(size=50, crop=1.0))
    assert square[:, 24:26].min() > 200
    assert square[:, :20].max() == 0


def test_zero_std_is_refused() -> None:
    with pytest.raises(ValueError, match="std must be positive"):
        Preprocess(std=(0.2, 0.0, 0.2))


def test_a_strip_costs_no_more_than_a_square() -> None:
    strip = np.zeros((1, 200_000, 3), np.uint8)
    assert centre_square(strip, Preprocess(size=64)).shape == (64, 64, 3)
