"""Several figures at once: intervals that hold together, and a test of the largest gap."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from skindx.metrics.bootstrap import group_weights
from skindx.metrics.measures import Measure
from skindx.metrics.share_intervals import Floats, Ints

# N = images, G = groups, D = bootstrap draws, K = parts, U = units, P = permutations

_CHUNK = 1 << 21  # units of permutations held in memory at once: 16 MiB


def simultaneous_levels(
    families: Mapping[str, Sequence[tuple[Measure, Ints]]],
    groups_N: ArrayLike,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    """Return the level of each interval with which all intervals of a family hold together.

    A family is a figure of several parts of the images: for each part its measure, and the places
    of its images among all. In each draw of whole groups the greatest deviation of a part, in
    standard errors, counts (max-t: Westfall and Young 1993; Hothorn, Bretz and Westfall 2008); its
    quantile c gives the level 2 Phi(c) - 1, at which each part's interval is then made: exact
    intervals stay exact where a bootstrap fails. It is never below `level`, nor above what
    Bonferroni's inequality asks for, which few images, whose deviations are skewed, would exceed.
    """
    _, index_N = np.unique(groups_N, return_inverse=True)
    groups = int(index_N.max()) + 1
    redraws = {
        name: [measure.redraw(index_N[rows], groups) for measure, rows in parts]
        for name, parts in families.items()
    }
    drawn: dict[str, list[Floats]] = {name: [] for name in families}
    for weights_DG in group_weights(groups, draws, seed, len(index_N)):
        with np.errstate(invalid="ignore", divide="ignore"):  # a draw may lack a part: NaN
            for name, parts in redraws.items():
                if parts:
                    drawn[name].append(np.stack([redraw(weights_DG) for redraw in parts], axis=1))
    return {
        name: _level(np.concatenate(values), [part.value for part, _ in families[name]], level)
        if values
        else level
        for name, values in drawn.items()
    }


def _level(values_DK: Floats, value_K: Sequence[float], level: float) -> float:
    finite_DK = np.isfinite(values_DK)
    deviation_DK = np.where(finite_DK, values_DK - np.asarray(value_K), 0.0)
    error_K = np.sqrt((deviation_DK**2).sum(axis=0) / np.maximum(finite_DK.sum(axis=0), 1))
    t_DK = np.abs(deviation_DK[:, error_K > 0]) / error_K[error_K > 0]
    if not t_DK.shape[1]:
        return level
    critical = float(np.quantile(t_DK.max(axis=1), level))
    return min(max(level, math.erf(critical / math.sqrt(2))), 1 - (1 - level) / len(value_K))


@dataclass(frozen=True, slots=True)
class GapTest:
    """The largest gap between parts beyond what their classes explain, and its p-value."""

    gap: float
    p: float
    permutations: int


def gap_test(
    hits_N: ArrayLike,
    parts_N: ArrayLike,
    classes_N: Ints,
    groups_N: ArrayLike,
    *,
    permutations: int = 1000,
    seed: int = 0,
) -> GapTest | None:
    """Test by permutation whether hits depend on the part that images belong to; None for one part.

    A part's figure is the mean of hit minus the mean hit of the class, so that parts with other
    classes do not differ by them. The parts are exchanged among groups of the same class (of a
    group the commonest), all images of a group in a part together: under the hypothesis that they
    tell nothing, each such order is as likely as the real one (p is exact: Phipson and Smyth 2010).
    """
    hits_N = np.asarray(hits_N, dtype=float)
    _, part_N = np.unique(np.asarray(parts_N), return_inverse=True)
    _, group_N = np.unique(np.asarray(groups_N), return_inverse=True)
    parts = int(part_N.max(initial=-1)) + 1
    if parts < 2:
        return None
    sum_C, count_C = np.bincount(classes_N, hits_N), np.bincount(classes_N)
    excess_N = hits_N - (sum_C / np.maximum(count_C, 1))[classes_N]
    pairs, unit_N = np.unique(group_N * parts + part_N, return_inverse=True)
    of_class_UC = np.zeros((len(pairs), len(count_C)))
    np.add.at(of_class_UC, (unit_N, classes_N), 1)
    class_U, part_U = of_class_UC.argmax(axis=1), pairs % parts
    excess_U, size_U = np.bincount(unit_N, excess_N), np.bincount(unit_N).astype(float)
    random = np.random.default_rng(seed)

    def gaps(orders_PU: Ints) -> Floats:
        means = []
        for part in range(parts):
            in_PU = (orders_PU == part).astype(float)
            means.append(in_PU @ excess_U / (in_PU @ size_U))
        gap_P: Floats = np.ptp(np.stack(means), axis=0)
        return gap_P

    (gap,) = gaps(part_U[None]).tolist()
    strata = [np.flatnonzero(class_U == label) for label in np.unique(class_U)]
    step, at_least = max(1, _CHUNK // len(pairs)), 0
    for start in range(0, permutations, step):
        orders_PU = np.tile(part_U, (min(step, permutations - start), 1))
        for units in strata:
            orders_PU[:, units] = random.permuted(orders_PU[:, units], axis=1)
        at_least += int((gaps(orders_PU) >= gap - 1e-12).sum())
    return GapTest(gap, (at_least + 1) / (permutations + 1), permutations)
