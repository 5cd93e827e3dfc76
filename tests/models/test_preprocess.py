import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.imaging.resize import shrink
from skindx.models.classifier.preprocess import Preprocess, framed_square

sides = st.integers(20, 300)


@given(height=sides, width=sides, size=st.integers(32, 96))
def test_any_image_becomes_a_square(height: int, width: int, size: int) -> None:
    image = np.zeros((height, width, 3), np.uint8)
    assert framed_square(image, Preprocess(size=size)).shape == (size, size, 3)


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
    square = framed_square(image, Preprocess(size=50, crop=1.0))
    assert square[:, 24:26].min() > 200
    assert square[:, :20].max() == 0


@given(height=sides, width=sides, size=st.integers(32, 96))
def test_a_whole_image_lies_between_bars_of_the_mean(height: int, width: int, size: int) -> None:
    preprocess = Preprocess(size=size, frame="whole", mean=(0.2, 0.5, 0.9), crop=0.5)
    image = np.full((height, width, 3), 255, np.uint8)
    image[0], image[-1], image[:, 0], image[:, -1] = 250, 250, 250, 250
    square = framed_square(image, preprocess)
    seen = (square >= 250).all(axis=2)
    rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    top, left, side = preprocess.square_of(height, width)
    scale = size / side
    assert len(rows) == max(1, round(height * scale))
    assert len(columns) == max(1, round(width * scale))
    assert rows[0] == pytest.approx(-top * scale, abs=1)
    assert columns[0] == pytest.approx(-left * scale, abs=1)
    assert seen.sum() == len(rows) * len(columns)
    assert (square[~seen] == (51, 128, 230)).all()


def test_a_frame_that_is_not_named_is_the_square() -> None:
    """Runs and bundles of before: what hashes their settings gets the same bytes."""
    assert Preprocess.model_validate({"size": 64}).frame == "square"
    assert set(Preprocess(size=64).model_dump()) == {"size", "mean", "std", "crop"}
    whole = Preprocess(size=64, frame="whole")
    assert Preprocess.model_validate_json(whole.model_dump_json()) == whole
    assert (whole.margin_size, Preprocess(size=63).margin_size) == (64, 70)


def test_zero_std_is_refused() -> None:
    with pytest.raises(ValueError, match="std must be positive"):
        Preprocess(std=(0.2, 0.0, 0.2))


def test_a_strip_costs_no_more_than_a_square() -> None:
    strip = np.zeros((1, 200_000, 3), np.uint8)
    assert framed_square(strip, Preprocess(size=64)).shape == (64, 64, 3)
