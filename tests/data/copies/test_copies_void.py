"""How surely a part of the overlap is of two images: counted by hand."""

import numpy as np
import pytest
from numpy.typing import NDArray

from skindx.data.copies.describe import Description
from skindx.data.copies.geometry import Aligned
from skindx.data.copies.overlap import void

SIDE = 101


def described(at_P2: NDArray[np.float64]) -> Description:
    points_P4 = np.zeros((len(at_P2), 4), np.float32)
    points_P4[:, :2] = at_P2
    none = np.zeros((len(at_P2), 0))
    return Description(
        (SIDE, SIDE),
        np.zeros((SIDE, SIDE), np.uint8),
        points_P4,
        none.astype(np.int8),
        none[..., None].astype(np.uint8),
        none[..., None].astype(np.uint8),
    )


def ring(radius: float, count: int) -> NDArray[np.float64]:
    angle = 2 * np.pi * np.arange(count) / count
    return 50 + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


EVEN = np.eye(3)[:2]
FIELD = np.zeros((SIDE, SIDE), np.float32)
LAID = Aligned(FIELD, FIELD, np.ones((SIDE, SIDE), np.bool_), EVEN, EVEN, 1.0)
INLIERS = ring(40, 24)
OTHERS = ring(48, 24)  # no inlier within three pixels, and in no disc inside the ring
MIDDLE = np.stack(np.meshgrid([45.0, 50, 55], [45.0, 50, 55]), axis=-1).reshape(-1, 2)
OUTSIDE = np.concatenate([INLIERS, OTHERS])


def test_nine_points_that_do_not_agree_at_a_rate_of_a_half() -> None:
    image = described(np.concatenate([OUTSIDE, MIDDLE]))
    assert void(image, image, LAID, INLIERS) == pytest.approx(9 * np.log(2), rel=0.1)


def test_an_image_that_shows_nothing_in_the_middle_denies_nothing() -> None:
    full, empty = described(np.concatenate([OUTSIDE, MIDDLE])), described(OUTSIDE)
    assert void(full, empty, LAID, INLIERS) < 2
    assert void(empty, full, LAID, INLIERS) < 2


def test_points_that_agree_leave_no_void() -> None:
    image = described(np.concatenate([OUTSIDE, MIDDLE]))
    assert (
        void(image, image, LAID, np.concatenate([INLIERS, MIDDLE])) < 4
    )  # a disc outside the ring


def test_an_overlap_without_points_says_nothing() -> None:
    image = described(np.zeros((0, 2)))
    assert void(image, image, LAID, INLIERS) == 0
