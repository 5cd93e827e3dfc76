"""Changes of lesions between two scans, with their uncertainty."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skindx.metrics.share_intervals import Interval
from skindx.scan.compare.growth import (
    colour_changes,
    discoveries,
    growth_of,
    two_sided,
)
from skindx.scan.compare.matching import Matched
from skindx.scan.compare.registration import ROOM
from skindx.scan.compare.view import View

# N = matched pairs

Kind = Literal["new", "grown", "changed", "vanished", "same", "not comparable"]
KINDS: tuple[Kind, ...] = ("new", "grown", "changed", "vanished", "same", "not comparable")
"""In the order in which a person should read them."""

_NORMAL = 1.959964


@dataclass(frozen=True)
class Change:
    """One lesion in one or both scans; growth is the diameter after through that before."""

    kind: Kind
    before: dict[str, Any] | None
    """Its row in the tables of the scan before; None: it is not there."""
    after: dict[str, Any] | None
    place_before: tuple[float, float]
    """Its middle in the shrunk photo before, where it is or should be."""
    place_after: tuple[float, float]
    size_before: float
    """Pixels of the shrunk photo before."""
    size_after: float
    growth: Interval | None = None
    """With its 95 % interval; None: only one scan has the lesion."""
    p_value: float | None = None
    """That it did not grow or shrink."""
    colour_change: float | None = None
    """Distance in CIELAB, once what all lesions changed by is taken off."""
    reasons: tuple[str, ...] = ()


def changes(before: View, after: View, matched: Matched) -> tuple[Change, ...]:
    """Return all lesions of both photos by kind, the largest change first."""
    pairs_N2, warp = matched.pairs_N2, matched.registration.warp
    found = _of_pairs(before, after, matched)
    alone = sorted(set(range(len(before.rows))) - set(pairs_N2[:, 0].tolist()))
    places = before.centres[alone].reshape(-1, 2)
    moved, scales = warp(places), warp.scales(places)
    covered = matched.registration.covers(after, places, before.sizes[alone])
    for number, is_covered, to, scale in zip(alone, covered, moved, scales, strict=True):
        size = float(before.sizes[number])
        found.append(
            Change(
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
    found += _only_after(before, after, matched)
    return tuple(sorted(found, key=_order))


def _of_pairs(before: View, after: View, matched: Matched) -> list[Change]:
    pairs_N2 = matched.pairs_N2
    if not len(pairs_N2):
        return []
    own_N, other_N = pairs_N2.T
    growth_N, sd_N = growth_of(before, after, matched)
    p_N = two_sided(growth_N / sd_N)
    significant_N = discoveries(p_N)
    colour_N, clear_N = colour_changes(before.colours_L3[own_N], after.colours_L3[other_N])
    found = []
    for n, (own, other) in enumerate(pairs_N2):
        low, high = growth_N[n] + np.array([-1, 1]) * _NORMAL * sd_N[n]
        row, row_after = before.rows[own], after.rows[other]
        reasons = []
        if significant_N[n] and growth_N[n] < 0:
            reasons.append("smaller")
        if clear_N[n]:
            reasons.append("colour")
        if row_after["urgent"] and not row["urgent"]:
            reasons.append("its urgent risk now reaches the threshold")
        grown = bool(significant_N[n] and growth_N[n] > 0)
        kind: Kind = "grown" if grown else "changed" if reasons else "same"
        found.append(
            Change(
                kind,
                row,
                row_after,
                _xy(before.centres[own]),
                _xy(after.centres[other]),
                float(before.sizes[own]),
                float(after.sizes[other]),
                Interval(*(float(np.exp(value)) for value in (growth_N[n], low, high))),
                float(p_N[n]),
                float(colour_N[n]),
                tuple(reasons),
            )
        )
    return found


def _only_after(before: View, after: View, matched: Matched) -> list[Change]:
    alone = sorted(set(range(len(after.rows))) - set(matched.pairs_N2[:, 1].tolist()))
    found, warp = [], matched.registration.warp
    for number in alone:
        place, scale = _backwards(before, matched, after.centres[number])
        size = float(after.sizes[number])
        room = ROOM * size / scale + 2 * float(warp.errors(np.array([place]))[0]) / scale
        width, height = before.size_wh
        inside = room <= place[0] <= width - room and room <= place[1] <= height - room
        found.append(
            Change(
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
    return found


def _backwards(
    before: View, matched: Matched, place_2: NDArray[np.float64]
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


def _inverse(map_33: NDArray[np.float64], places_N2: NDArray[np.float64]) -> NDArray[np.float64]:
    from skindx.scan.compare import plane

    return plane.apply(np.asarray(np.linalg.inv(map_33), np.float64), places_N2)


def _xy(place: NDArray[np.float64]) -> tuple[float, float]:
    return float(place[0]), float(place[1])


def _order(change: Change) -> tuple[float, ...]:
    growth = -change.growth.low if change.growth and change.kind == "grown" else 0.0
    row = change.after or change.before
    assert row is not None
    return KINDS.index(change.kind), growth, row["rank"], change.after is None
