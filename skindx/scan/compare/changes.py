"""Lesions of two photos, matched, and which of them changed, with their uncertainty."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from skindx.core.errors import UserError
from skindx.metrics.share_intervals import Interval
from skindx.scan.compare.registration import ROOM, Registration, ScanView
from skindx.scan.compare.warp import Warp, apply_homography, fit_warp
from skindx.scan.pixel_store import Bools, Floats, Ints
from skindx.texts.catalogue import joined, text

# L = lesions before, K = lesions after, N = pairs

_ERRORS, _SIZES = 3.0, 0.5
"""Largest distance of a lesion from its expected place: standard deviations, and own sizes."""
_LOG_SIZE = 0.8
"""Difference of the logarithms of sizes that counts as much as the farthest distance."""
_UNMATCHED = 1.2
"""Cost of a lesion without a partner; the distance alone costs at most 1."""
_LEAST_POINTS = 4
_ROUNDS = 5
_FEW, _LEAST_MATCHED = 8, 0.5
"""Lesions expected in both photos, and the share that must have a partner if there are so many."""


@dataclass(frozen=True)
class Matched:
    """Lesions of both photos."""

    registration: Registration
    """Refined by the lesions themselves."""
    pairs_N2: Ints
    """Lesion before and lesion after."""


def match(before: ScanView, after: ScanView, registration: Registration) -> Matched:
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
        more_matched = len(again_N2) > len(pairs_N2)
        warp, pairs_N2 = refined, again_N2
        if not more_matched:
            break
    final = Registration(warp, registration.points, registration.by_lesions)
    shown_L = final.covers(after, before.centres, before.sizes)
    expected = min(int(shown_L.sum()), len(after.rows))
    if expected >= _FEW and len(pairs_N2) < _LEAST_MATCHED * expected:
        names = {"before": before.photo.name, "after": after.photo.name}
        unfit = text("compared_unfit", **names, found=len(pairs_N2), expected=expected)
        raise UserError(joined(unfit, text("compared_unfit_do")))
    return Matched(final, pairs_N2)


def _refined(warp: Warp, before: ScanView, after: ScanView, pairs_N2: Ints) -> Warp:
    """Return the warp through its own points and through lesions."""
    from_N2, to_N2 = before.centres[pairs_N2[:, 0]], after.centres[pairs_N2[:, 1]]
    refined = fit_warp(
        warp.map_33, np.vstack([from_N2, warp.from_M2]), np.vstack([to_N2, warp(warp.from_M2)])
    )
    # The warp's own points lie on it by construction, so its error and smoothing stay.
    return replace(
        refined,
        smoothing=max(refined.smoothing, warp.smoothing),
        error_px=max(refined.error_px, warp.error_px),
    )


def _assigned(before: ScanView, after: ScanView, warp: Warp) -> Ints:
    from scipy.optimize import linear_sum_assignment

    count_before, count_after = len(before.rows), len(after.rows)
    if not count_before or not count_after:
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
    whole = np.full((count_before + count_after, count_before + count_after), 0.0)
    whole[:count_before, :count_after] = cost_LK
    whole[:count_before, count_after:] = np.where(np.eye(count_before), _UNMATCHED, impossible)
    whole[count_before:, :count_after] = np.where(np.eye(count_after), _UNMATCHED, impossible)
    rows, columns = linear_sum_assignment(whole)
    real = (rows < count_before) & (columns < count_after)
    return np.stack([rows[real], columns[real]], axis=1).astype(np.int64)


# N = matched pairs

_EDGE_PX, _EDGE_SHARE = 0.7, 0.05
"""Standard deviation of one edge of a detector's box: pixels of the photo, and share of its size.
The spread of the person's own lesions replaces it where it is larger."""
_PRIOR_LESIONS = 8
_LEAST_FOR_MIDDLE = 8
_FALSE_SHARE = 0.05
"""False discovery rate of the lesions called grown or shrunk (Benjamini and Hochberg 1995)."""
_SPREAD = 1.4826
_TYPICAL_COLOUR, _LEAST_COLOUR, _COLOUR_SPREADS = 2.5, 6.0, 4.0


def growth_of(before: ScanView, after: ScanView, matched: Matched) -> tuple[Floats, Floats]:
    """Return the logarithm of each pair's growth and its standard deviation.

    Sizes are compared in millimetres where both photos have a scale, and else by the registration,
    which says how much larger the skin around a lesion is in the photo after.
    """
    before_N, other_N = matched.pairs_N2.T
    size_N, after_N = before.sizes[before_N], after.sizes[other_N]
    warp = matched.registration.warp
    if before.mm_per_pixel and after.mm_per_pixel:
        scale_N = np.full(len(before_N), before.mm_per_pixel / after.mm_per_pixel)
    else:
        scale_N = warp.scales(before.centres[before_N], around=float(np.median(size_N)))
    growth_N = np.log(after_N / (size_N * scale_N))
    # The median of many lesions does not grow: it is an error of the scale, or of the light.
    if len(growth_N) >= _LEAST_FOR_MIDDLE:
        growth_N -= np.median(growth_N)
    edge_N = _edge(size_N, before), _edge(after_N, after)
    # A diameter is the root of two sides, and each is between two edges.
    model_N = np.hypot(*edge_N)
    seen = _SPREAD * float(np.median(np.abs(growth_N - np.median(growth_N))))
    typical = float(np.median(model_N))
    n = len(growth_N)
    shared = np.sqrt((n * seen**2 + _PRIOR_LESIONS * typical**2) / (n + _PRIOR_LESIONS))
    return growth_N, np.maximum(model_N * max(1.0, shared / typical), 1e-6)


def _edge(size_N: Floats, view: ScanView) -> Floats:
    """Return the standard deviation of a diameter's logarithm, by the jitter of its box."""
    pixel = view.size_wh[0] / view.photo.width
    return np.hypot(_EDGE_PX * pixel, _EDGE_SHARE * size_N) / size_N


def two_sided(z_N: Floats) -> Floats:
    from scipy.stats import norm

    return 2 * norm.sf(np.abs(z_N))


def discoveries(p_N: Floats) -> Bools:
    """Return which p-values are small enough for this number of lesions."""
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p_N) <= _FALSE_SHARE)


def colour_changes(before_N3: Floats, after_N3: Floats) -> tuple[Floats, Bools]:
    """Return each pair's change of colour, and which are clear beside those of the others."""
    off_N3 = after_N3 - before_N3
    if len(off_N3) >= _LEAST_FOR_MIDDLE:
        off_N3 = off_N3 - np.median(off_N3, axis=0)
    away_N = np.sqrt((off_N3**2).sum(axis=1))
    n = len(away_N)
    seen = float(np.median(away_N)) / np.sqrt(2.366)  # the median of chi square with 3 degrees
    spread = np.sqrt((n * seen**2 + _PRIOR_LESIONS * _TYPICAL_COLOUR**2) / (n + _PRIOR_LESIONS))
    return away_N, (away_N > _LEAST_COLOUR) & (away_N > _COLOUR_SPREADS * spread)


# N = matched pairs

Kind = Literal["new", "grown", "changed", "vanished", "same", "not comparable"]
KINDS: tuple[Kind, ...] = ("new", "grown", "changed", "vanished", "same", "not comparable")
"""Kinds of change in the order in which a person should read them."""

_NORMAL = 1.959964


@dataclass(frozen=True)
class LesionChange:
    """One lesion in one or both scans; growth is the diameter after through that before."""

    kind: Kind
    before: dict[str, Any] | None
    """Row in the tables of the earlier scan; None: that scan does not have the lesion."""
    after: dict[str, Any] | None
    place_before: tuple[float, float]
    """Centre of the lesion in the earlier shrunk photo, where it is or should be."""
    place_after: tuple[float, float]
    size_before: float
    """Diameter in pixels of the earlier shrunk photo."""
    size_after: float
    growth: Interval | None = None
    """Growth with its 95 % interval; None: only one scan shows the lesion."""
    p_value: float | None = None
    """P-value of the hypothesis that its size did not change."""
    colour_change: float | None = None
    """Distance in CIELAB after the change that all lesions share is subtracted."""
    reasons: tuple[str, ...] = ()
    """Why it is of its kind, as the table has it."""


def changes(before: ScanView, after: ScanView, matched: Matched) -> tuple[LesionChange, ...]:
    """Return all lesions of both photos by kind, the largest change first."""
    pairs_N2, warp = matched.pairs_N2, matched.registration.warp
    changed = _of_pairs(before, after, matched)
    alone = sorted(set(range(len(before.rows))) - set(pairs_N2[:, 0].tolist()))
    places = before.centres[alone].reshape(-1, 2)
    moved, scales = warp(places), warp.scales(places)
    covered = matched.registration.covers(after, places, before.sizes[alone])
    for number, is_covered, to, scale in zip(alone, covered, moved, scales, strict=True):
        size = float(before.sizes[number])
        changed.append(
            LesionChange(
                "vanished" if is_covered else "not comparable",
                before.rows[number],
                None,
                _xy(before.centres[number]),
                _xy(to),
                size,
                size * float(scale),
                reasons=() if is_covered else ("the photo after does not show its place",),
            )
        )
    changed += _only_after(before, after, matched)
    return tuple(sorted(changed, key=_order))


def _of_pairs(before: ScanView, after: ScanView, matched: Matched) -> list[LesionChange]:
    pairs_N2 = matched.pairs_N2
    if not len(pairs_N2):
        return []
    before_N, after_N = pairs_N2.T
    growth_N, sd_N = growth_of(before, after, matched)
    p_N = two_sided(growth_N / sd_N)
    significant_N = discoveries(p_N)
    colour_N, clear_N = colour_changes(before.colours_L3[before_N], after.colours_L3[after_N])
    changed = []
    for n, (first, second) in enumerate(pairs_N2):
        low, high = growth_N[n] + np.array([-1, 1]) * _NORMAL * sd_N[n]
        row, row_after = before.rows[first], after.rows[second]
        reasons = []
        if significant_N[n] and growth_N[n] < 0:
            reasons.append("smaller")
        if clear_N[n]:
            reasons.append("colour")
        if row_after["urgent"] and not row["urgent"]:
            reasons.append("its urgent risk now reaches the threshold")
        grown = bool(significant_N[n] and growth_N[n] > 0)
        kind: Kind = "grown" if grown else "changed" if reasons else "same"
        changed.append(
            LesionChange(
                kind,
                row,
                row_after,
                _xy(before.centres[first]),
                _xy(after.centres[second]),
                float(before.sizes[first]),
                float(after.sizes[second]),
                Interval(*(float(np.exp(value)) for value in (growth_N[n], low, high))),
                float(p_N[n]),
                float(colour_N[n]),
                tuple(reasons),
            )
        )
    return changed


def _only_after(before: ScanView, after: ScanView, matched: Matched) -> list[LesionChange]:
    alone = sorted(set(range(len(after.rows))) - set(matched.pairs_N2[:, 1].tolist()))
    changed, warp = [], matched.registration.warp
    for number in alone:
        place, scale = _backwards(before, matched, after.centres[number])
        size = float(after.sizes[number])
        room = ROOM * size / scale + 2 * float(warp.errors(np.array([place]))[0]) / scale
        width, height = before.size_wh
        inside = room <= place[0] <= width - room and room <= place[1] <= height - room
        changed.append(
            LesionChange(
                "new" if inside else "not comparable",
                None,
                after.rows[number],
                place,
                _xy(after.centres[number]),
                size / scale,
                size,
                reasons=() if inside else ("the photo before does not show its place",),
            )
        )
    return changed


def _backwards(
    before: ScanView, matched: Matched, place_2: Floats
) -> tuple[tuple[float, float], float]:
    """Return the place of the photo before that lies on one of the photo after, and the scale."""
    warp = matched.registration.warp
    guess_12 = _inverse(warp.map_33, place_2[None])
    for _ in range(20):
        missed_12 = place_2[None] - warp(guess_12)
        if np.abs(missed_12).max() < 0.01:
            break
        step_12 = _inverse(warp.map_33, place_2[None]) - _inverse(
            warp.map_33, place_2[None] - missed_12
        )
        guess_12 = guess_12 + step_12
    return _xy(guess_12[0]), float(warp.scales(guess_12)[0])


def _inverse(map_33: Floats, places_N2: Floats) -> Floats:
    return apply_homography(np.asarray(np.linalg.inv(map_33), np.float64), places_N2)


def _xy(place: Floats) -> tuple[float, float]:
    return float(place[0]), float(place[1])


def _order(change: LesionChange) -> tuple[float, ...]:
    growth = -change.growth.low if change.growth and change.kind == "grown" else 0.0
    row = change.after or change.before
    assert row is not None
    return KINDS.index(change.kind), growth, row["rank"], change.after is None
