"""Which photos of a diagnosis are wide ones."""

import pytest

from skindx.data.box import Box
from skindx.diagnosis.network_gates import WideRule


def square(side: float, x: float = 10) -> Box:
    return Box(x, 10, x + side, 10 + side, "lesion", "detector", 0.5)


@pytest.mark.parametrize(
    ("sides", "small"),
    [
        ((), 0),
        ((40,), 0),
        ((40, 40), 0),
        ((40, 40, 40), 3),
        ((100, 100, 100), 3),  # an eighth of the shorter side
        ((101, 101, 101), 0),
        ((40, 600, 40, 40, 40), 4),  # a doubtful large box beside them
        ((600, 40, 40, 40, 40), 0),  # a close-up of one lesion, with others around
    ],
)
def test_a_wide_photo_shows_several_small_lesions(sides: tuple[float, ...], small: int) -> None:
    boxes = [square(side, 10 + 5 * place) for place, side in enumerate(sides)]
    assert WideRule().small_lesions(1200, 800, boxes) == small
    assert WideRule().small_lesions(800, 1200, boxes) == small
