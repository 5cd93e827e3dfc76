"""One picture in another encoding is told without points; pictures that only look alike are not."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from skindx.data.copies.describe import Description, describe
from skindx.data.copies.whole_frame import same_picture
from skindx.data.synthetic.painter import paint
from skindx.imaging.hashes import grey

Pixels = NDArray[np.uint8]


def pixels(number: int) -> Pixels:
    return paint("Compound_Nevus", number, 7).pixels


def described(shown: Pixels) -> Description:
    return describe(grey(np.ascontiguousarray(shown)))


def mole(radius: int, seed: int) -> Pixels:
    """Return a dark disc on light skin with faint grain: such images share their hashes."""
    grain = np.random.default_rng(seed).normal(0, 5, (150, 200)).astype(np.float32)
    shown = np.full((150, 200), 190, np.float32) + cv2.GaussianBlur(grain, (0, 0), 1.0)
    cv2.circle(shown, (100, 75), radius, 70.0, -1)
    shown = cv2.GaussianBlur(shown, (0, 0), 1.5)
    return np.repeat(shown.clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


MADE = {
    "half the size": lambda shown: cv2.resize(shown, None, fx=0.5, fy=0.5),
    "blurred": lambda shown: cv2.GaussianBlur(shown, (0, 0), 3.0),
    "squeezed": lambda shown: cv2.resize(shown, None, fx=1.0, fy=0.75),
    "lighter": lambda shown: (shown * 0.8 + 40).clip(0, 255).astype(np.uint8),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_another_encoding_in_any_orientation_is_one_picture(
    kind: str, quarter: int, mirrored: bool
) -> None:
    original = pixels(1)
    made = np.rot90(MADE[kind](original), quarter)
    made = made[:, ::-1] if mirrored else made
    picture = same_picture(described(original), described(made))
    assert picture is not None
    assert picture.mirrored == mirrored
    assert picture.aligned.covered > 0.95


def test_the_map_leads_from_the_first_image_to_the_second() -> None:
    first, second = described(pixels(1)), described(np.rot90(pixels(1)))
    picture = same_picture(first, second)
    assert picture is not None
    width = first.shape_hw[1]
    corner = picture.aligned.transform_23 @ np.array([width - 1.0, 0, 1])
    assert corner == pytest.approx([0, 0], abs=1.5)  # a quarter turn against the clock


def test_other_paintings_are_other_pictures() -> None:
    images = [described(pixels(number)) for number in range(8)]
    assert not any(same_picture(images[i], images[j]) for i in range(8) for j in range(i))


def test_round_moles_on_light_skin_are_other_pictures() -> None:
    images = [described(mole(radius, radius)) for radius in (28, 30, 32, 34)]
    assert not any(same_picture(images[i], images[j]) for i in range(4) for j in range(i))


def test_what_shows_nothing_is_no_picture() -> None:
    even = described(np.full((90, 120, 3), 128, np.uint8))
    assert same_picture(even, even) is None
