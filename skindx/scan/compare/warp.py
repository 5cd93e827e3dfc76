"""The map from one photo to another: a homography and a thin-plate spline on top of it.

Bookstein 1989 ("Principal warps: thin-plate splines and the decomposition of deformations"), with
the smoothing that predicts points left out the best.
"""

from dataclasses import dataclass

import numpy as np

from skindx.scan.pixel_store import Bools, Floats, Ints

# M = matches, N = points

_NEAR = 8.0
"""Pixels at points.LONG_SIDE within which a match agrees."""
LEAST_MATCHES = 20
_MOST_SCALE, _MOST_STRETCH = 3.0, 2.5


def homography(from_M2: Floats, to_M2: Floats, near: float = _NEAR) -> tuple[Floats, Bools] | None:
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
    if agree_M.sum() < LEAST_MATCHES or not plausible_homography(map_33, from_M2[agree_M]):
        return None
    return map_33, agree_M


def apply_homography(map_33: Floats, places_N2: Floats) -> Floats:
    """Return places after a homography."""
    moved_N3 = np.column_stack([places_N2, np.ones(len(places_N2))]) @ map_33.T
    return moved_N3[:, :2] / moved_N3[:, 2:]


def plausible_homography(map_33: Floats, places_N2: Floats) -> bool:
    """Return whether a person seen from another place looks so: no mirror, no folding."""
    depth_N = np.column_stack([places_N2, np.ones(len(places_N2))]) @ map_33[2]
    if depth_N.min() * depth_N.max() <= 0:
        return False
    for place in (places_N2.mean(axis=0), *np.percentile(places_N2, (10, 90), axis=0)):
        around_32 = apply_homography(map_33, place + np.array([[0, 0], [1, 0], [0, 1]]))
        jacobian_22 = (around_32[1:] - around_32[0]).T
        large, small = np.linalg.svd(jacobian_22, compute_uv=False)
        if np.linalg.det(jacobian_22) <= 0 or large > _MOST_STRETCH * small:
            return False
        if not 1 / _MOST_SCALE < np.sqrt(large * small) < _MOST_SCALE:
            return False
    return True


# N = places, M = matches, F = folds

_MOST_POINTS = 400
_SMOOTHING = (1e-4, 1e-2, 1.0, 100.0)
_FOLDS = 5
_AWAY = 0.06
"""Pixels of error for each pixel between a place and the nearest point that both photos show."""
_LEAST_ERROR_PX = 0.5


@dataclass(frozen=True)
class Warp:
    """The map from one photo to another."""

    map_33: Floats
    """The homography."""
    from_M2: Floats
    """Points of the first photo that were found in the second."""
    rest_M2: Floats
    """How far from the homography they are."""
    smoothing: float
    scale: float
    """Divisor of coordinates for the spline."""
    error_px: float
    """Standard deviation along one axis of points that were left out, in the second photo."""

    def __call__(self, places_N2: Floats) -> Floats:
        """Return where places of the first photo lie in the second."""
        if not len(places_N2):
            return places_N2.copy()
        moved_N2 = apply_homography(self.map_33, places_N2)
        return moved_N2 + _spline(
            self.from_M2 / self.scale, self.rest_M2, places_N2 / self.scale, self.smoothing
        )

    def errors(self, places_N2: Floats) -> Floats:
        """Return the standard deviation along one axis of each place, in the second photo."""
        from scipy.spatial import cKDTree

        if not len(places_N2):
            return np.empty(0)
        away_N, _ = cKDTree(self.from_M2).query(places_N2)
        return np.hypot(self.error_px, _AWAY * away_N * self.scales(places_N2))

    def scales(self, places_N2: Floats, around: float = 1.0) -> Floats:
        """Return how many pixels of the second photo one of the first becomes at each place."""
        if not len(places_N2):
            return np.empty(0)
        steps_42 = around * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
        moved_4N2 = self((places_N2[None] + steps_42[:, None]).reshape(-1, 2)).reshape(4, -1, 2)
        x_N2, y_N2 = (moved_4N2[0] - moved_4N2[1]) / 2, (moved_4N2[2] - moved_4N2[3]) / 2
        area_N = np.abs(x_N2[:, 0] * y_N2[:, 1] - x_N2[:, 1] * y_N2[:, 0])
        scales_N: Floats = np.sqrt(area_N) / around
        return scales_N


def fit_warp(map_33: Floats, from_M2: Floats, to_M2: Floats) -> Warp:
    """Return the warp through matches, which all have to be right."""
    kept_M = _thinned(from_M2)
    from_M2, to_M2 = from_M2[kept_M], to_M2[kept_M]
    rest_M2 = to_M2 - apply_homography(map_33, from_M2)
    scale = float(np.ptp(from_M2, axis=0).max()) or 1.0
    left_out = [
        (_spread(_left_out(from_M2 / scale, rest_M2, smoothing)), smoothing)
        for smoothing in _SMOOTHING
    ]
    error_px, smoothing = min(left_out)
    return Warp(map_33, from_M2, rest_M2, smoothing, scale, max(error_px, _LEAST_ERROR_PX))


def _thinned(from_M2: Floats) -> Ints:
    """Return at most `_MOST_POINTS` matches at different places, evenly spread."""
    _, first_M = np.unique(np.round(from_M2), axis=0, return_index=True)
    if len(first_M) <= _MOST_POINTS:
        return np.sort(first_M)
    cell_M2 = from_M2[first_M] - from_M2[first_M].min(axis=0)
    cell_M2 = np.floor(cell_M2 * 20 / cell_M2.max()).astype(int)
    order = np.lexsort((first_M, cell_M2[:, 0], cell_M2[:, 1]))
    number = cell_M2[order, 1] * 21 + cell_M2[order, 0]
    within = np.arange(len(order)) - np.searchsorted(number, number)
    return np.sort(first_M[order[np.lexsort((order, within))][:_MOST_POINTS]])


def _spline(from_M2: Floats, rest_M2: Floats, places_N2: Floats, smoothing: float) -> Floats:
    from scipy.interpolate import RBFInterpolator

    spline = RBFInterpolator(
        from_M2, rest_M2, kernel="thin_plate_spline", degree=1, smoothing=smoothing
    )
    values_N2: Floats = spline(places_N2)
    return values_N2


def _left_out(from_M2: Floats, rest_M2: Floats, smoothing: float) -> Floats:
    """Return how far each point is from where the others predict it."""
    fold_M = np.arange(len(from_M2)) % _FOLDS
    off_M2 = np.empty_like(rest_M2)
    for fold in range(_FOLDS):
        out_M = fold_M == fold
        off_M2[out_M] = rest_M2[out_M] - _spline(
            from_M2[~out_M], rest_M2[~out_M], from_M2[out_M], smoothing
        )
    return off_M2


def _spread(off_M2: Floats) -> float:
    return 1.4826 * float(np.median(np.abs(off_M2)))
