"""Two photos of the same view: where a place of the first lies in the second."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.scan.compare import plane, thin_plate
from skindx.scan.compare.constellation import constellation
from skindx.scan.compare.growing import grown, smooth
from skindx.scan.compare.points import matches, points_of
from skindx.scan.compare.view import View

# N = places, M = matches, 2 = x, y

_LONG_SIDE = 1600.0
"""Lengths below are pixels of a photo whose longer side has so many."""
_FAR, _NEAR = 90.0, 10.0
"""Most distance of a match from the plane, and from what its neighbours say."""
_LEAST_COVERED = 0.08
"""Share of the second photo's area that the matches' hull has to have."""
_MOST_ERROR = 16.0
_LEAST_IN_PLACE, _MOSTLY_IN_PLACE = 0.3, 0.7
"""Share of the lesions that both photos should show which must be in place, and from which no
better registration is looked for."""
_LEAST_LESIONS = 5
ROOM = 0.75
"""Of a lesion's size, from its middle to the photo's edge: a detector misses what the edge cuts."""


@dataclass(frozen=True)
class Registration:
    """A map from the photo before to the photo after, and what it rests on."""

    warp: thin_plate.Warp
    points: int
    """Places of the skin that both photos show."""
    by_lesions: bool
    """The lesions alone were laid on each other: the skin shows nothing else in common."""

    def covers(
        self, view: View, places_N2: NDArray[np.float64], size_N: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return which places of the photo before are in the photo after, with their lesions."""
        moved_N2 = self.warp(places_N2)
        room_N = ROOM * size_N * self.warp.scales(places_N2) + 2 * self.warp.errors(places_N2)
        low_N2 = moved_N2 >= room_N[:, None]
        high_N2 = moved_N2 <= np.array(view.size_wh) - room_N[:, None]
        return np.asarray((low_N2 & high_N2).all(axis=1))


def register(before: View, after: View) -> Registration:
    """Return how the photo before lies on the photo after.

    Raises UserError where they show another person or another view.
    """
    found = _by_points(before, after)
    share = _in_place(found.warp, before, after) if found else 0.0
    if share < _MOSTLY_IN_PLACE:
        lesions = _by_lesions(before, after)
        if lesions and _in_place(lesions.warp, before, after) > share:
            found = lesions
    if found is None:
        raise UserError(
            f"{before.photo.name} and {after.photo.name} cannot be laid on each other: they show "
            f"different people, another part of the body, or were taken from very different sides."
        )
    return found


def _by_points(before: View, after: View) -> Registration | None:
    points, others = points_of(before.pixels_HW3), points_of(after.pixels_HW3)
    pairs_M2 = matches(points[1], others[1])
    if len(pairs_M2) < plane.LEAST_MATCHES:
        return None
    unit = max(after.size_wh) / _LONG_SIDE
    from_M2, to_M2 = points[0][pairs_M2[:, 0]], others[0][pairs_M2[:, 1]]
    for near in (1.0, 3.0):  # a body that moved agrees with a plane only roughly
        found = plane.homography(from_M2, to_M2, near * 8 * unit)
        if found is None:
            continue
        map_33, agree_M = found
        kept_M = _near_the_plane(from_M2, to_M2 - plane.apply(map_33, from_M2), unit)
        if kept_M.sum() < agree_M.sum():
            kept_M = agree_M
        first = thin_plate.fit(map_33, from_M2[kept_M], to_M2[kept_M])
        more = grown(first, points, others, unit)
        if more is None or len(more[1]) < plane.LEAST_MATCHES:
            continue
        warp, from_all_M2, to_all_M2 = more
        if _plausible(warp, to_all_M2, after) and _in_place(warp, before, after) >= _LEAST_IN_PLACE:
            return Registration(warp, len(from_all_M2), False)
    return None


def _by_lesions(before: View, after: View) -> Registration | None:
    found = constellation(before.centres, before.sizes, after.centres, after.sizes, after.size_wh)
    if found is None:
        return None
    from_N2, to_N2 = before.centres[found.pairs_N2[:, 0]], after.centres[found.pairs_N2[:, 1]]
    map_33 = np.vstack([found.similarity_23, [0, 0, 1]])
    warp = thin_plate.fit(map_33, from_N2, to_N2)
    return Registration(warp, len(from_N2), True) if _plausible(warp, to_N2, after) else None


def _near_the_plane(
    from_M2: NDArray[np.float64], rest_M2: NDArray[np.float64], unit: float
) -> NDArray[np.bool_]:
    """Return which matches are about as far from the plane as their neighbours."""
    kept_M = np.asarray(np.hypot(*rest_M2.T) < _FAR * unit)
    for near in (3 * _NEAR, 1.5 * _NEAR, _NEAR):
        places = np.flatnonzero(kept_M)
        kept_M[places] = smooth(from_M2[places], rest_M2[places], near * unit)
    return kept_M


def _plausible(warp: thin_plate.Warp, to_M2: NDArray[np.float64], after: View) -> bool:
    """Return whether the matches are spread over the photo and predict each other."""
    import cv2

    hull = cv2.convexHull(to_M2.astype(np.float32))
    covered = cv2.contourArea(hull) / (after.size_wh[0] * after.size_wh[1])
    error = warp.error_px * _LONG_SIDE / max(after.size_wh)
    return covered >= _LEAST_COVERED and error <= _MOST_ERROR


def _in_place(warp: thin_plate.Warp, before: View, after: View) -> float:
    """Return the share of lesions that lie on lesions, of those that both photos should show.

    A ruler or cloth that both photos show lays no lesion on another. 1 with too few to judge by.
    """
    from scipy.spatial import cKDTree

    moved_L2 = warp(before.centres)
    inside_L = ((moved_L2 >= 0) & (moved_L2 < after.size_wh)).all(axis=1)
    expected = min(int(inside_L.sum()), len(after.rows))
    if expected < _LEAST_LESIONS:
        return 1.0
    away_L, nearest_L = cKDTree(after.centres).query(moved_L2[inside_L])
    size_L = before.sizes[inside_L] * warp.scales(before.centres[inside_L])
    near_L = away_L < 3 * warp.error_px + 0.5 * size_L
    return len(np.unique(np.asarray(nearest_L)[near_L])) / expected
