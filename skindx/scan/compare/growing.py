"""More points in common, found where those that are known lead one to expect them.

A match that stands alone must be much like its partner and unlike all others. Where a warp says
roughly where a point should lie, only the points there compete, so that more are found, and the
warp reaches further with each round.
"""

import numpy as np
from numpy.typing import NDArray

from skindx.scan.compare import thin_plate

# P, Q = points of the first and the second photo, K = candidates, M = matches

Points = tuple[NDArray[np.float64], NDArray[np.float32]]
"""Places and descriptors of a photo's points."""

_ROUNDS = 6
_CANDIDATES = 10
_ERRORS, _SLACK, _FARTHEST = 3.0, 5.0, 45.0
"""Standard deviations and pixels from where a point should lie, and the most pixels in all."""
_ALIKE, _RATIO = 0.8, 0.85
"""Least cosine of two descriptors, and most ratio of the squared distances to the best two."""
_NEIGHBOURS, _CONTRADICTS = 8, 8.0
"""How many neighbours a match is compared with, and pixels from what they say."""
_ENOUGH = 1.03
"""Growth of the number of matches below which another round gains nothing."""


def grown(
    warp: thin_plate.Warp, points: Points, others: Points, unit: float
) -> tuple[thin_plate.Warp, NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the warp through all points in common, and their places in both photos.

    None: hardly any point is where the warp leads one to expect it. `unit` is the size in pixels
    of what the lengths of this module call one.
    """
    best: tuple[thin_plate.Warp, NDArray[np.float64], NDArray[np.float64]] | None = None
    for _ in range(_ROUNDS):
        from_M2, to_M2 = _matched(warp, points, others, unit)
        kept_M = smooth(from_M2, to_M2 - warp(from_M2), unit * _CONTRADICTS)
        if kept_M.sum() < 2 * _NEIGHBOURS:
            return best
        from_M2, to_M2 = from_M2[kept_M], to_M2[kept_M]
        if best is not None and len(from_M2) < _ENOUGH * len(best[1]):
            return best
        warp = thin_plate.fit(warp.map_33, from_M2, to_M2)
        best = warp, from_M2, to_M2
    return best


def smooth(
    from_M2: NDArray[np.float64], rest_M2: NDArray[np.float64], near: float
) -> NDArray[np.bool_]:
    """Return which matches are off by about as much as their neighbours, to `near` pixels.

    Skin moves smoothly: a match that its neighbours contradict is wrong.
    """
    from scipy.spatial import cKDTree

    if len(from_M2) <= _NEIGHBOURS:
        return np.zeros(len(from_M2), bool)
    _, nearest = cKDTree(from_M2).query(from_M2, k=_NEIGHBOURS + 1)
    around_M2 = np.median(rest_M2[np.asarray(nearest)[:, 1:]], axis=1)
    return np.asarray(np.hypot(*(rest_M2 - around_M2).T) <= near)


def _matched(
    warp: thin_plate.Warp, points: Points, others: Points, unit: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return places of points and of those that are most like them where they should lie."""
    from scipy.spatial import cKDTree

    (from_P2, descriptors_PD), (to_Q2, descriptors_QD) = points, others
    count = min(_CANDIDATES, len(to_Q2))
    gate_P = np.minimum(_ERRORS * warp.errors(from_P2) + _SLACK * unit, _FARTHEST * unit)
    away, nearest = cKDTree(to_Q2).query(
        warp(from_P2), k=count, distance_upper_bound=_FARTHEST * unit
    )
    away_PK, nearest_PK = np.asarray(away), np.asarray(nearest)
    there_PK = away_PK <= gate_P[:, None]
    nearest_PK = np.where(there_PK, nearest_PK, 0)
    alike_PK = np.einsum("pd,pkd->pk", descriptors_PD, descriptors_QD[nearest_PK])
    alike_PK[~there_PK] = -1
    best_P, second_P = alike_PK.argmax(axis=1), np.sort(alike_PK, axis=1)[:, -min(2, count)]
    own_P = np.arange(len(from_P2))
    cosine_P = alike_PK[own_P, best_P]
    clear_P = (1 - cosine_P) <= _RATIO * (1 - second_P)
    kept_P = np.flatnonzero((cosine_P >= _ALIKE) & clear_P)
    partner_P = nearest_PK[own_P, best_P]
    # The point that is most like it keeps a partner that several want.
    kept_P = kept_P[np.argsort(-cosine_P[kept_P], kind="stable")]
    _, first = np.unique(partner_P[kept_P], return_index=True)
    kept_P = np.sort(kept_P[first])
    return from_P2[kept_P], to_Q2[partner_P[kept_P]]
