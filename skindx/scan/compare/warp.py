"""The map from one photo to another: a homography and a thin-plate spline on top of it.

Bookstein 1989 ("Principal warps: thin-plate splines and the decomposition of deformations"), with
the smoothing that predicts points left out the best.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skindx.scan.pixel_store import Bools, Floats, Ints

if TYPE_CHECKING:
    from scipy.spatial import cKDTree


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
    return spline(places_N2)


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


# L, K = lesions of the first and the second photo, E, F = pairs of neighbours, H = proposals

_NEIGHBOURS = 5
_MOST_LESIONS = 150
"""Most lesions of a photo that are used, the largest ones."""
_SIZE_AGREES = 0.6
"""Difference of logarithms: between sizes, once the proposed scale is taken off."""
_MOST_LOG_SCALE = np.log(3)
_BINS = (0.12, np.radians(8), 0.04, 0.04)
"""Log scale, angle, and place as a share of the second photo's longer side."""
_TRIED = 40
_NEAR_PAIRS = 0.025
"""Share of the second photo's longer side within which lesions are in place."""
_LEAST_LESIONS = 6
_LEAST_SHARE = 0.5
"""Least share of the lesions expected in both photos that must be in place."""
_CHANCE = 1e-4


@dataclass(frozen=True)
class Constellation:
    """How the lesions of one photo lie on those of another."""

    similarity_23: Floats
    pairs_N2: Ints
    """Lesions whose place agrees."""


def constellation(
    from_L2: Floats, sizes_L: Floats, to_K2: Floats, sizes_K: Floats, size_wh: tuple[int, int]
) -> Constellation | None:
    """Return how the first lesions lie on the second; None: no better than by chance.

    `size_wh` is of the second photo.
    """
    from scipy.spatial import cKDTree

    if min(len(from_L2), len(to_K2)) < _LEAST_LESIONS:
        return None
    kept_L, kept_K = _largest(sizes_L), _largest(sizes_K)
    proposals_H4 = _proposals(from_L2[kept_L], sizes_L[kept_L], to_K2[kept_K], sizes_K[kept_K])
    if not len(proposals_H4):
        return None
    side = max(size_wh)
    tree, near = cKDTree(to_K2), _NEAR_PAIRS * side
    best: tuple[int, Floats, Ints] | None = None
    for proposal_4 in _voted(proposals_H4, side):
        map_23 = _matrix(proposal_4)
        pairs_N2 = np.empty((0, 2), np.int64)
        for _ in range(3):
            pairs_N2 = _in_place(tree, from_L2 @ map_23[:, :2].T + map_23[:, 2], near)
            if len(pairs_N2) < 3:
                break
            map_23 = _fitted(from_L2[pairs_N2[:, 0]], to_K2[pairs_N2[:, 1]])
        if best is None or len(pairs_N2) > best[0]:
            best = len(pairs_N2), map_23, pairs_N2
    assert best is not None
    in_place, map_23, pairs_N2 = best
    moved_L2 = from_L2 @ map_23[:, :2].T + map_23[:, 2]
    inside = int(((moved_L2 >= 0) & (moved_L2 < size_wh)).all(axis=1).sum())
    by_chance = min(1.0, len(to_K2) * np.pi * near**2 / (size_wh[0] * size_wh[1]))
    if in_place < _LEAST_LESIONS or in_place < _LEAST_SHARE * min(inside, len(to_K2)):
        return None
    from scipy.stats import binom

    # Two lesions are in place by construction, and the best of all proposals was taken.
    p_value = len(proposals_H4) * binom.sf(in_place - 3, max(inside - 2, 1), by_chance)
    return Constellation(map_23, pairs_N2) if p_value < _CHANCE else None


def _largest(sizes_L: Floats) -> Ints:
    return np.sort(np.argsort(-sizes_L, kind="stable")[:_MOST_LESIONS])


def _proposals(from_L2: Floats, sizes_L: Floats, to_K2: Floats, sizes_K: Floats) -> Floats:
    """Return similarities as real and imaginary factor, then x and y of the shift."""
    first_E2, second_F2 = _edges(from_L2), _edges(to_K2)
    second_F2 = np.concatenate([second_F2, second_F2[:, ::-1]])
    from_L, to_K = from_L2 @ (1, 1j), to_K2 @ (1, 1j)
    turn_EF = (to_K[second_F2[:, 1]] - to_K[second_F2[:, 0]])[None, :] / (
        from_L[first_E2[:, 1]] - from_L[first_E2[:, 0]]
    )[:, None]
    scale_EF = np.log(np.abs(turn_EF))
    fits_EF = np.abs(scale_EF) < _MOST_LOG_SCALE
    for end in range(2):
        before_E, after_F = sizes_L[first_E2[:, end]], sizes_K[second_F2[:, end]]
        grown_EF = np.log(after_F)[None, :] - np.log(before_E)[:, None]
        fits_EF &= np.abs(grown_EF - scale_EF) < _SIZE_AGREES
    edge_H, other_H = np.nonzero(fits_EF)
    turn_H = turn_EF[edge_H, other_H]
    shift_H = to_K[second_F2[other_H, 0]] - turn_H * from_L[first_E2[edge_H, 0]]
    return np.stack([turn_H.real, turn_H.imag, shift_H.real, shift_H.imag], axis=1)


def _edges(places_L2: Floats) -> Ints:
    """Return pairs of neighbours at different places."""
    from scipy.spatial import cKDTree

    count = min(_NEIGHBOURS + 1, len(places_L2))
    distance, nearest = map(np.asarray, cKDTree(places_L2).query(places_L2, k=count))
    centre = np.repeat(np.arange(len(places_L2))[:, None], count, axis=1)
    return np.stack([centre[distance > 0], nearest[distance > 0]], axis=1)


def _voted(proposals_H4: Floats, side: int) -> list[Floats]:
    """Return the middles of the bins with the most votes, also of bins shifted by half."""
    turn_H = proposals_H4[:, 0] + 1j * proposals_H4[:, 1]
    middle = side / 2
    # Where the middle of the first photo comes to lie depends less on the angle than the shift.
    place_H = turn_H * (middle + 1j * middle) + proposals_H4[:, 2] + 1j * proposals_H4[:, 3]
    values_H4 = np.stack(
        [np.log(np.abs(turn_H)), np.angle(turn_H), place_H.real / side, place_H.imag / side], axis=1
    )
    chosen: list[Floats] = []
    for offset in (0.0, 0.5):
        bins_H4 = np.floor(values_H4 / _BINS + offset).astype(np.int64)
        _, bin_H, votes = np.unique(bins_H4, axis=0, return_inverse=True, return_counts=True)
        chosen += [
            np.median(proposals_H4[bin_H.ravel() == number], axis=0)
            for number in np.argsort(-votes, kind="stable")[:_TRIED]
        ]
    return chosen


def _matrix(proposal_4: Floats) -> Floats:
    real, imaginary, x, y = proposal_4
    return np.array([[real, -imaginary, x], [imaginary, real, y]])


def _in_place(tree: "cKDTree", moved_L2: Floats, near: float) -> Ints:
    """Return pairs of lesions nearer than `near`, each lesion at most once."""
    distance_L, nearest_L = map(np.asarray, tree.query(moved_L2, distance_upper_bound=near))
    order_L = np.argsort(distance_L, kind="stable")
    order_L = order_L[np.isfinite(distance_L[order_L])]
    _, first = np.unique(nearest_L[order_L], return_index=True)
    kept = order_L[np.sort(first)]
    return np.stack([kept, nearest_L[kept]], axis=1).astype(np.int64)


def _fitted(from_N2: Floats, to_N2: Floats) -> Floats:
    """Return the similarity of least squares."""
    from_N, to_N = from_N2 @ (1, 1j), to_N2 @ (1, 1j)
    centred = from_N - from_N.mean()
    turn = (centred.conj() * (to_N - to_N.mean())).sum() / max((np.abs(centred) ** 2).sum(), 1e-9)
    shift = to_N.mean() - turn * from_N.mean()
    return _matrix(np.array([turn.real, turn.imag, shift.real, shift.imag]))
