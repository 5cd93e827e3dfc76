"""Where the points of two images lie in their common frame, under maps that turn and shear."""

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from test_copies_void import described

from skindx.data.copies.describe import describe
from skindx.data.copies.geometry import Aligned
from skindx.data.copies.overlap import shown_points
from skindx.data.copies.verify import evidence_of
from skindx.data.synthetic.painter import paint
from skindx.imaging.hashes import grey

SIDE = 200
FIELD = np.zeros((SIDE, SIDE), np.float32)
FIRST_P2 = np.array([[40.0, 60.0], [90.0, 50.0], [70.0, 110.0]])
TO_SECOND_23 = np.array([[0.8, -0.6, 50.0], [0.5, 0.9, -20.0]])
TO_FRAME_23 = np.array([[0.9, 0.3, 10.0], [-0.2, 0.8, 30.0]])


def moved(map_23: NDArray[np.float64], at_P2: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply a map as its definition says: x' = a x + b y + c, y' = d x + e y + f."""
    (a, b, c), (d, e, f) = map_23.tolist()
    return np.array([(a * x + b * y + c, d * x + e * y + f) for x, y in at_P2.tolist()])


@pytest.mark.parametrize("to_first", [True, False])
def test_one_place_lies_at_one_pixel_of_the_frame_from_either_image(to_first: bool) -> None:
    shown_HW = np.ones((SIDE, SIDE), np.bool_)
    aligned = Aligned(FIELD, FIELD, shown_HW, TO_SECOND_23, TO_FRAME_23, 1.0)
    at_P2 = FIRST_P2 if to_first else moved(TO_SECOND_23, FIRST_P2)
    expected_P2 = np.rint(moved(TO_FRAME_23, FIRST_P2)).astype(int)
    shown_P2 = shown_points(described(at_P2), aligned, to_first=to_first)
    assert shown_P2.tolist() == expected_P2.tolist()


def test_a_turned_copy_shows_the_same_whichever_image_is_the_frame() -> None:
    """Inliers that are laid elsewhere have all points, or none, in the discs around them."""
    whole_HW3 = paint("Compound_Nevus", 3, 77).pixels
    height, width = whole_HW3.shape[:2]
    turn_23 = cv2.getRotationMatrix2D((width / 2, height / 2), 70, 0.9)
    turned_HW3 = np.asarray(cv2.warpAffine(whole_HW3, turn_23, (width, height)))
    first, second = describe(grey(whole_HW3)), describe(grey(turned_HW3))
    one, other = evidence_of(first, second)[0], evidence_of(second, first)[0]
    assert abs(one.aligned.to_frame_23[0, 1]) > 0.2  # the frame of one of them is turned
    for name in ("void", "closed", "consent"):
        assert one[name] == pytest.approx(other[name], abs=0.02, rel=0.1), name
