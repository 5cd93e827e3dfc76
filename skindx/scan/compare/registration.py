"""Two photos of the same view: where a place of the first lies in the second.

Points are SIFT (Lowe 2004) with RootSIFT's normalisation (Arandjelovic and Zisserman 2012); matches
are mutually nearest and clearly nearer than the next (Lowe's ratio). A match that stands alone must
be much like its partner and unlike all others. Where a warp says roughly where a point should lie,
only the points there compete, so that more match, and the warp reaches further with each round.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import read_parquet
from skindx.core.errors import UserError
from skindx.imaging.sandboxed_images import decode_limited
from skindx.scan.compare.warp import (
    LEAST_MATCHES,
    Warp,
    apply_homography,
    constellation,
    fit_warp,
    homography,
)
from skindx.scan.outputs.scan_files import PARQUET
from skindx.scan.outputs.scan_result import PhotoSummary, Summary, damaged_scan, read_summary
from skindx.scan.pixel_store import Bools, Floats, Ints, Pixels
from skindx.texts.catalogue import joined, text

# L = lesions of a photo, H, W = rows and columns of the shrunk photo

_COLUMNS = (
    "rank", "photo_number", "x1", "y1", "x2", "y2", "detector_score", "urgent_risk", "urgent",
    "most_likely", "possible", "colour_l", "colour_a", "colour_b", "crop",
)  # fmt: skip


@dataclass(frozen=True)
class ScanView:
    """One photo of a scan; places are in pixels of `pixels_HW3`."""

    photo: PhotoSummary
    pixels_HW3: Pixels
    boxes_L4: Floats
    """x1, y1, x2, y2."""
    colours_L3: Floats
    """CIELAB, lesion minus skin."""
    rows: tuple[dict[str, Any], ...]
    """The lesions as lesions.parquet has them, in the same order."""

    @property
    def centres(self) -> Floats:
        return (self.boxes_L4[:, :2] + self.boxes_L4[:, 2:]) / 2

    @property
    def sizes(self) -> Floats:
        """Return the geometric means of the boxes' sides."""
        sides_L2 = self.boxes_L4[:, 2:] - self.boxes_L4[:, :2]
        return np.asarray(np.sqrt(sides_L2.prod(axis=1)))

    @property
    def size_wh(self) -> tuple[int, int]:
        height, width, _ = self.pixels_HW3.shape
        return int(width), int(height)

    @property
    def mm_per_pixel(self) -> float | None:
        """Return the scale of the shrunk photo."""
        if self.photo.mm_per_pixel is None:
            return None
        return self.photo.mm_per_pixel * self.photo.width / self.size_wh[0]


@dataclass(frozen=True)
class StoredScan:
    """A scan's folder, read."""

    folder: Path
    summary: Summary
    views: tuple[ScanView, ...]


def read_scan(folder: Path) -> StoredScan:
    """Read a folder that `skindx scan run` wrote. Raises UserError for anything else."""
    summary = read_summary(folder)
    try:
        rows = read_parquet(folder / PARQUET, _COLUMNS).to_pylist()
        for row in rows:  # older versions wrote 0 where the bundle has no urgent class
            row["urgent_risk"] = row["urgent_risk"] or None
        views = tuple(
            _view(folder, photo, [row for row in rows if row["photo_number"] == number])
            for number, photo in enumerate(summary.photos, 1)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged_scan(folder, f"{type(error).__name__}: {error}") from None
    return StoredScan(folder, summary, views)


def _view(folder: Path, photo: PhotoSummary, rows: list[dict[str, Any]]) -> ScanView:
    path = (folder / photo.overview).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{photo.overview} leads out of the folder")
    pixels_HW3 = decode_limited(path.read_bytes())
    boxes_L4 = np.array([[row[name] for name in ("x1", "y1", "x2", "y2")] for row in rows], float)
    colours_L3 = np.array([[row[f"colour_{axis}"] for axis in "lab"] for row in rows], float)
    shrunk = pixels_HW3.shape[1] / photo.width
    return ScanView(
        photo, pixels_HW3, boxes_L4.reshape(-1, 4) * shrunk, colours_L3.reshape(-1, 3), tuple(rows)
    )


# P, Q = points of the first and the second photo, M = matches, D = 128

LONG_SIDE = 1600
_POINTS = 4000
_CELLS = 12
"""Points are taken evenly from so many squares along the longer side: hair and cloth have the
strongest ones, skin the most."""
_CONTRAST, _EDGE = 0.008, 15.0
_RATIO = 0.88
_CHUNK = 1000


def points_of(pixels_HW3: Pixels) -> tuple[Floats, NDArray[np.float32]]:
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


def _spread(places_P2: Floats, strength_P: Floats, side: int) -> Ints:
    """Return which points to keep: the strongest of every square, at most `_POINTS` in all."""
    cell_P2 = np.minimum(places_P2 * _CELLS / side, _CELLS - 1).astype(int)
    cell_P = cell_P2[:, 1] * _CELLS + cell_P2[:, 0]
    order_P = np.lexsort((places_P2[:, 0], places_P2[:, 1], -strength_P, cell_P))
    sorted_P = cell_P[order_P]
    place_P = np.arange(len(order_P)) - np.searchsorted(sorted_P, sorted_P)
    kept_P = order_P[np.lexsort((order_P, place_P))][:_POINTS]
    return np.sort(kept_P)


def matches(descriptors_PD: NDArray[np.float32], descriptors_QD: NDArray[np.float32]) -> Ints:
    """Return pairs_M2 of points, the clearest first."""
    if min(len(descriptors_PD), len(descriptors_QD)) < 2:
        return np.empty((0, 2), np.int64)
    forth_P, ratio_P = _nearest(descriptors_PD, descriptors_QD)
    back_Q, _ = _nearest(descriptors_QD, descriptors_PD)
    row_P = np.arange(len(descriptors_PD))
    kept_P = np.flatnonzero((back_Q[forth_P] == row_P) & (ratio_P < _RATIO))
    kept_P = kept_P[np.argsort(ratio_P[kept_P], kind="stable")]
    return np.stack([kept_P, forth_P[kept_P]], axis=1)


def _nearest(from_PD: NDArray[np.float32], to_QD: NDArray[np.float32]) -> tuple[Ints, Floats]:
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


# P, Q = points of the first and the second photo, K = candidates, M = matches

Points = tuple[Floats, NDArray[np.float32]]
"""Places and descriptors of a photo's points."""

_ROUNDS = 6
_CANDIDATES = 10
_ERRORS, _SLACK, _FARTHEST = 3.0, 5.0, 45.0
"""Standard deviations and pixels from where a point should lie, and the most pixels in all."""
_ALIKE, _GUIDED_RATIO = 0.8, 0.85
"""Least cosine of two descriptors, and most ratio of the squared distances to the best two."""
_NEIGHBOURS, _CONTRADICTS = 8, 8.0
"""How many neighbours a match is compared with, and pixels from what they say."""
_ENOUGH = 1.03
"""Growth of the number of matches below which another round gains nothing."""


def grown(
    warp: Warp, points_before: Points, points_after: Points, unit: float
) -> tuple[Warp, Floats, Floats] | None:
    """Return the warp through all points in common, and their places in both photos.

    None: hardly any point is where the warp leads one to expect it. `unit` is the size in pixels
    of what the lengths of this module call one.
    """
    best: tuple[Warp, Floats, Floats] | None = None
    for _ in range(_ROUNDS):
        from_M2, to_M2 = _matched(warp, points_before, points_after, unit)
        kept_M = smooth(from_M2, to_M2 - warp(from_M2), unit * _CONTRADICTS)
        if kept_M.sum() < 2 * _NEIGHBOURS:
            return best
        from_M2, to_M2 = from_M2[kept_M], to_M2[kept_M]
        if best is not None and len(from_M2) < _ENOUGH * len(best[1]):
            return best
        warp = fit_warp(warp.map_33, from_M2, to_M2)
        best = warp, from_M2, to_M2
    return best


def smooth(from_M2: Floats, rest_M2: Floats, near: float) -> Bools:
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
    warp: Warp, points_before: Points, points_after: Points, unit: float
) -> tuple[Floats, Floats]:
    """Return places of points and of those that are most like them where they should lie."""
    from scipy.spatial import cKDTree

    (from_P2, descriptors_PD), (to_Q2, descriptors_QD) = points_before, points_after
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
    row_P = np.arange(len(from_P2))
    cosine_P = alike_PK[row_P, best_P]
    clear_P = (1 - cosine_P) <= _GUIDED_RATIO * (1 - second_P)
    kept_P = np.flatnonzero((cosine_P >= _ALIKE) & clear_P)
    partner_P = nearest_PK[row_P, best_P]
    # The point that is most like it keeps a partner that several want.
    kept_P = kept_P[np.argsort(-cosine_P[kept_P], kind="stable")]
    _, first = np.unique(partner_P[kept_P], return_index=True)
    kept_P = np.sort(kept_P[first])
    return from_P2[kept_P], to_Q2[partner_P[kept_P]]


# N = places, M = matches, 2 = x, y

_LONG_SIDE = 1600.0
"""Longer side of a photo, in pixels, to which the lengths below refer."""
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
"""Least distance to the photo's edge in sizes of a lesion: a detector misses what the edge cuts."""


@dataclass(frozen=True)
class Registration:
    """A map from the photo before to the photo after, and what it rests on."""

    warp: Warp
    points: int
    """Places of the skin that both photos show."""
    by_lesions: bool
    """Whether only the lesions were matched, since the skin shows nothing else in common."""

    def covers(self, view: ScanView, places_N2: Floats, size_N: Floats) -> Bools:
        """Return which places of the photo before are in the photo after, with their lesions."""
        moved_N2 = self.warp(places_N2)
        room_N = ROOM * size_N * self.warp.scales(places_N2) + 2 * self.warp.errors(places_N2)
        low_N2 = moved_N2 >= room_N[:, None]
        high_N2 = moved_N2 <= np.array(view.size_wh) - room_N[:, None]
        return np.asarray((low_N2 & high_N2).all(axis=1))


def register(before: ScanView, after: ScanView) -> Registration:
    """Return how the photo before lies on the photo after.

    Raises UserError where they show another person or another view.
    """
    registration = _by_points(before, after)
    share = _in_place(registration.warp, before, after) if registration else 0.0
    if share < _MOSTLY_IN_PLACE:
        lesions = _by_lesions(before, after)
        if lesions and _in_place(lesions.warp, before, after) > share:
            registration = lesions
    if registration is None:
        raise UserError(
            joined(
                text("compared_different", before=before.photo.name, after=after.photo.name),
                text("compared_unfit_do"),
            )
        )
    return registration


def _by_points(before: ScanView, after: ScanView) -> Registration | None:
    points_before, points_after = points_of(before.pixels_HW3), points_of(after.pixels_HW3)
    pairs_M2 = matches(points_before[1], points_after[1])
    if len(pairs_M2) < LEAST_MATCHES:
        return None
    unit = max(after.size_wh) / _LONG_SIDE
    from_M2, to_M2 = points_before[0][pairs_M2[:, 0]], points_after[0][pairs_M2[:, 1]]
    for near in (1.0, 3.0):  # a body that moved agrees with a plane only roughly
        fit = homography(from_M2, to_M2, near * 8 * unit)
        if fit is None:
            continue
        map_33, agree_M = fit
        kept_M = _near_the_plane(from_M2, to_M2 - apply_homography(map_33, from_M2), unit)
        if kept_M.sum() < agree_M.sum():
            kept_M = agree_M
        first = fit_warp(map_33, from_M2[kept_M], to_M2[kept_M])
        more = grown(first, points_before, points_after, unit)
        if more is None or len(more[1]) < LEAST_MATCHES:
            continue
        warp, from_all_M2, to_all_M2 = more
        if _plausible(warp, to_all_M2, after) and _in_place(warp, before, after) >= _LEAST_IN_PLACE:
            return Registration(warp, len(from_all_M2), False)
    return None


def _by_lesions(before: ScanView, after: ScanView) -> Registration | None:
    stars = constellation(before.centres, before.sizes, after.centres, after.sizes, after.size_wh)
    if stars is None:
        return None
    from_N2, to_N2 = before.centres[stars.pairs_N2[:, 0]], after.centres[stars.pairs_N2[:, 1]]
    map_33 = np.vstack([stars.similarity_23, [0, 0, 1]])
    warp = fit_warp(map_33, from_N2, to_N2)
    return Registration(warp, len(from_N2), True) if _plausible(warp, to_N2, after) else None


def _near_the_plane(from_M2: Floats, rest_M2: Floats, unit: float) -> Bools:
    """Return which matches are about as far from the plane as their neighbours."""
    kept_M = np.asarray(np.hypot(*rest_M2.T) < _FAR * unit)
    for near in (3 * _NEAR, 1.5 * _NEAR, _NEAR):
        places = np.flatnonzero(kept_M)
        kept_M[places] = smooth(from_M2[places], rest_M2[places], near * unit)
    return kept_M


def _plausible(warp: Warp, to_M2: Floats, after: ScanView) -> bool:
    """Return whether the matches are spread over the photo and predict each other."""
    import cv2

    hull = cv2.convexHull(to_M2.astype(np.float32))
    covered = cv2.contourArea(hull) / (after.size_wh[0] * after.size_wh[1])
    error = warp.error_px * _LONG_SIDE / max(after.size_wh)
    return covered >= _LEAST_COVERED and error <= _MOST_ERROR


def _in_place(warp: Warp, before: ScanView, after: ScanView) -> float:
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
