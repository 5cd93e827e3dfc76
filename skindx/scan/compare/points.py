"""Points of a photo and which of them are the same in another one.

SIFT (Lowe 2004) with RootSIFT's normalisation (Arandjelovic and Zisserman 2012); matches are
mutually nearest and clearly nearer than the next (Lowe's ratio).
"""

import numpy as np
from numpy.typing import NDArray

# P, Q = points of the first and the second photo, M = matches, D = 128

LONG_SIDE = 1600
_POINTS = 4000
_CELLS = 12
"""Points are taken evenly from so many squares along the longer side: hair and cloth have the
strongest ones, skin the most."""
_CONTRAST, _EDGE = 0.008, 15.0
_RATIO = 0.88
_CHUNK = 1000


def points_of(pixels_HW3: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return places_P2 in pixels and descriptors_PD of unit length."""
    import cv2

    grey_HW = cv2.cvtColor(np.ascontiguousarray(pixels_HW3), cv2.COLOR_RGB2GRAY)
    height, width = grey_HW.shape
    scale = min(1.0, LONG_SIDE / max(height, width))
    if scale < 1:
        grey_HW = cv2.resize(grey_HW, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    even_HW = cv2.createCLAHE(3.0, (8, 8)).apply(grey_HW)
    sift = cv2.SIFT.create(contrastThreshold=_CONTRAST, edgeThreshold=_EDGE)
    keys, raw_PD = sift.detectAndCompute(even_HW, None)
    if raw_PD is None:
        return np.empty((0, 2)), np.empty((0, 128), np.float32)
    places_P2 = np.array([key.pt for key in keys], np.float64)
    kept_P = _spread(places_P2, np.array([key.response for key in keys]), max(even_HW.shape))
    raw_PD = raw_PD[kept_P] / np.maximum(raw_PD[kept_P].sum(axis=1, keepdims=True), 1)
    return places_P2[kept_P] / scale, np.sqrt(raw_PD).astype(np.float32)


def _spread(
    places_P2: NDArray[np.float64], strength_P: NDArray[np.float64], side: int
) -> NDArray[np.int64]:
    """Return which points to keep: the strongest of every square, at most `_POINTS` in all."""
    cell_P2 = np.minimum(places_P2 * _CELLS / side, _CELLS - 1).astype(int)
    cell_P = cell_P2[:, 1] * _CELLS + cell_P2[:, 0]
    order_P = np.lexsort((places_P2[:, 0], places_P2[:, 1], -strength_P, cell_P))
    sorted_P = cell_P[order_P]
    place_P = np.arange(len(order_P)) - np.searchsorted(sorted_P, sorted_P)
    kept_P = order_P[np.lexsort((order_P, place_P))][:_POINTS]
    return np.sort(kept_P)


def matches(
    descriptors_PD: NDArray[np.float32], descriptors_QD: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return pairs_M2 of points, the clearest first."""
    if min(len(descriptors_PD), len(descriptors_QD)) < 2:
        return np.empty((0, 2), np.int64)
    forth_P, ratio_P = _nearest(descriptors_PD, descriptors_QD)
    back_Q, _ = _nearest(descriptors_QD, descriptors_PD)
    own_P = np.arange(len(descriptors_PD))
    kept_P = np.flatnonzero((back_Q[forth_P] == own_P) & (ratio_P < _RATIO))
    kept_P = kept_P[np.argsort(ratio_P[kept_P], kind="stable")]
    return np.stack([kept_P, forth_P[kept_P]], axis=1)


def _nearest(
    from_PD: NDArray[np.float32], to_QD: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return each point's nearest one and how its distance compares with the second's."""
    nearest, ratio = [], []
    for start in range(0, len(from_PD), _CHUNK):
        alike_CQ = from_PD[start : start + _CHUNK] @ to_QD.T
        rows_C = np.arange(len(alike_CQ))
        first_C = alike_CQ.argmax(axis=1)
        best_C = alike_CQ[rows_C, first_C].copy()
        alike_CQ[rows_C, first_C] = -1
        # Unit vectors: the squared distance is 2 - 2 times the cosine.
        squares = (1 - best_C) / np.maximum(1 - alike_CQ.max(axis=1), 1e-6)
        nearest.append(first_C)
        ratio.append(np.sqrt(np.maximum(squares, 0)))
    return np.concatenate(nearest), np.concatenate(ratio).astype(np.float64)
