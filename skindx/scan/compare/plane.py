"""A plane seen by two cameras: the homography that most matches agree with."""

import numpy as np
from numpy.typing import NDArray

# M = matches, N = points

_NEAR = 8.0
"""Pixels at points.LONG_SIDE within which a match agrees."""
LEAST_MATCHES = 20
_MOST_SCALE, _MOST_STRETCH = 3.0, 2.5


def homography(
    from_M2: NDArray[np.float64], to_M2: NDArray[np.float64], near: float = _NEAR
) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
    """Return the homography_33 and which matches agree with it; None: none that a camera makes.

    MAGSAC++ (Barath et al. 2020), the same answer every time.
    """
    import cv2

    if len(from_M2) < LEAST_MATCHES:
        return None
    map_33, agree_M1 = cv2.findHomography(
        from_M2, to_M2, cv2.USAC_MAGSAC, near, maxIters=10_000, confidence=0.99999
    )
    if map_33 is None:
        return None
    agree_M = agree_M1.ravel().astype(bool)
    if agree_M.sum() < LEAST_MATCHES or not sane(map_33, from_M2[agree_M]):
        return None
    return map_33, agree_M


def apply(map_33: NDArray[np.float64], places_N2: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return places after a homography."""
    moved_N3 = np.column_stack([places_N2, np.ones(len(places_N2))]) @ map_33.T
    return moved_N3[:, :2] / moved_N3[:, 2:]


def sane(map_33: NDArray[np.float64], places_N2: NDArray[np.float64]) -> bool:
    """Return whether a person seen from another place looks so: no mirror, no folding."""
    depth_N = np.column_stack([places_N2, np.ones(len(places_N2))]) @ map_33[2]
    if depth_N.min() * depth_N.max() <= 0:
        return False
    for place in (places_N2.mean(axis=0), *np.percentile(places_N2, (10, 90), axis=0)):
        around_32 = apply(map_33, place + np.array([[0, 0], [1, 0], [0, 1]]))
        jacobian_22 = (around_32[1:] - around_32[0]).T
        large, small = np.linalg.svd(jacobian_22, compute_uv=False)
        if np.linalg.det(jacobian_22) <= 0 or large > _MOST_STRETCH * small:
            return False
        if not 1 / _MOST_SCALE < np.sqrt(large * small) < _MOST_SCALE:
            return False
    return True
