"""Matching of lesions on the photo before with those on the photo after."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.scan.compare import thin_plate
from skindx.scan.compare.registration import Registration
from skindx.scan.compare.view import View

# L = lesions before, K = lesions after, N = pairs

_ERRORS, _SIZES = 3.0, 0.5
"""A lesion may be so many standard deviations and so much of its size from where it should be."""
_LOG_SIZE = 0.8
"""Difference of the logarithms of sizes that counts as much as the farthest distance."""
_UNMATCHED = 1.2
"""Cost of a lesion without a partner; the distance alone costs at most 1."""
_LEAST_POINTS = 4
_ROUNDS = 5
_FEW, _LEAST_MATCHED = 8, 0.5
"""From so many lesions that both photos should show, this share of them must have a partner."""


@dataclass(frozen=True)
class Matched:
    """Lesions of both photos."""

    registration: Registration
    """Refined by the lesions themselves."""
    pairs_N2: NDArray[np.int64]
    """Lesion before and lesion after."""


def match(before: View, after: View, registration: Registration) -> Matched:
    """Return the pairs with the least total distance, each lesion at most once.

    Lesions that were found in place are then points that both photos show as well, and all are
    matched again. Raises UserError where most have no partner: a list of what is new and what has
    vanished would be wrong.
    """
    warp = registration.warp
    pairs_N2 = _assigned(before, after, warp)
    for _ in range(_ROUNDS):
        if len(pairs_N2) < _LEAST_POINTS:
            break
        refined = _refined(registration.warp, before, after, pairs_N2)
        again_N2 = _assigned(before, after, refined)
        if len(again_N2) < len(pairs_N2):
            break
        found_more = len(again_N2) > len(pairs_N2)
        warp, pairs_N2 = refined, again_N2
        if not found_more:
            break
    final = Registration(warp, registration.points, registration.by_lesions)
    shown_L = final.covers(after, before.centres, before.sizes)
    expected = min(int(shown_L.sum()), len(after.rows))
    if expected >= _FEW and len(pairs_N2) < _LEAST_MATCHED * expected:
        raise UserError(
            f"only {len(pairs_N2)} of the {expected} lesions that {before.photo.name} and "
            f"{after.photo.name} should both show lie where they should; take the second photo in "
            "the posture and from the side of the first."
        )
    return Matched(final, pairs_N2)


def _refined(
    warp: thin_plate.Warp, before: View, after: View, pairs_N2: NDArray[np.int64]
) -> thin_plate.Warp:
    """Return the warp through its own points and through lesions."""
    from_N2, to_N2 = before.centres[pairs_N2[:, 0]], after.centres[pairs_N2[:, 1]]
    refined = thin_plate.fit(
        warp.map_33, np.vstack([from_N2, warp.from_M2]), np.vstack([to_N2, warp(warp.from_M2)])
    )
    # The warp's own points lie on it by construction, so its error and smoothing stay.
    return replace(
        refined,
        smoothing=max(refined.smoothing, warp.smoothing),
        error_px=max(refined.error_px, warp.error_px),
    )


def _assigned(before: View, after: View, warp: thin_plate.Warp) -> NDArray[np.int64]:
    from scipy.optimize import linear_sum_assignment

    lesions, others = len(before.rows), len(after.rows)
    if not lesions or not others:
        return np.empty((0, 2), np.int64)
    moved_L2 = warp(before.centres)
    size_L = before.sizes * warp.scales(before.centres)
    away_LK = np.hypot(*(moved_L2[:, None] - after.centres[None]).transpose(2, 0, 1))
    largest_LK = np.maximum(size_L[:, None], after.sizes[None])
    gate_LK = _ERRORS * warp.errors(before.centres)[:, None] + _SIZES * largest_LK
    grown_LK = np.log(after.sizes)[None] - np.log(size_L)[:, None]
    cost_LK = (away_LK / gate_LK) ** 2 + 0.5 * (grown_LK / _LOG_SIZE) ** 2
    impossible = 1e6
    cost_LK[away_LK > gate_LK] = impossible
    whole = np.full((lesions + others, lesions + others), 0.0)
    whole[:lesions, :others] = cost_LK
    whole[:lesions, others:] = np.where(np.eye(lesions), _UNMATCHED, impossible)
    whole[lesions:, :others] = np.where(np.eye(others), _UNMATCHED, impossible)
    rows, columns = linear_sum_assignment(whole)
    real = (rows < lesions) & (columns < others)
    pairs_N2: NDArray[np.int64] = np.stack([rows[real], columns[real]], axis=1).astype(np.int64)
    return pairs_N2
