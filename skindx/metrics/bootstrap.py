"""The interval of a measure, in closed form or by bootstrap over groups; and several at once."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from skindx.metrics.measures import Measure
from skindx.metrics.share_intervals import Bools, Floats, Interval, Ints, effective_size

# N = images, G = groups, D = bootstrap draws

_SAME = 1e-12
_CHUNK = 1 << 22  # weights held in memory at once: 32 MiB


def confidence_interval(
    measure: Measure, groups_N: ArrayLike, *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return a measure with its interval over groups of images that are no independent evidence.

    A measure with a closed form uses it: shares, means over classes, the calibration error.
    The others are resampled; see `bootstrap_interval`.
    """
    if measure.closed_form is not None:
        return measure.closed_form(np.asarray(groups_N), level)
    return bootstrap_interval(measure, groups_N, draws=draws, level=level, seed=seed)


def bootstrap_interval(
    measure: Measure, groups_N: ArrayLike, *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Return the percentile bootstrap interval (Efron 1979), resampling whole groups.

    Images of one group (patient, lesion, cluster of duplicates) are drawn together, since they are
    no independent evidence. The same seed and groups give the same draws for every measure. Draws
    in which the measure is not defined do not count; with a single group the interval is NaN.

    Draws never show an image that the sample does not have, so near the ends of the scale, and
    where few images decide, percentiles are too narrow and may have no width. The share of images
    that may have been missed by chance, at the measure's worst value, is therefore joined to the
    percentiles by the square-and-add rule (Zou and Donner 2008).
    """
    groups_N = np.asarray(groups_N)
    _, index_N = np.unique(groups_N, return_inverse=True)
    if index_N.shape != (measure.images,):
        raise ValueError(
            f"the measure has {measure.images} images, but the groups have the shape "
            f"{index_N.shape}"
        )
    value = measure.value
    if math.isnan(value):
        return Interval(value, float("nan"), float("nan"))
    redraw = measure.redraw(index_N, int(index_N.max()) + 1)
    (interval,) = bootstrap_intervals(
        lambda weights_DG: redraw(weights_DG)[:, None],
        np.array([value]),
        groups_N,
        low=np.array([measure.low]),
        high=np.array([measure.high]),
        strata_N=measure.strata,
        draws=draws,
        level=level,
        seed=seed,
    )
    return interval


def bootstrap_intervals(
    redraw: Callable[[Floats], Floats],
    value_K: Floats,
    groups_N: ArrayLike,
    *,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
    strata_N: Ints | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[Interval]:
    """Return the intervals of K figures of the same draws, each by itself: see above.

    `redraw` turns weights_DG into the figures, D x K; `low` and `high` are the least and the
    greatest value that each can take.
    """
    groups_N = np.asarray(groups_N)
    groups, tail = len(np.unique(groups_N)), (1 - level) / 2
    nothing = float("nan")
    if groups == 1:
        return [Interval(float(value), nothing, nothing) for value in value_K]
    values_DK = np.concatenate(
        [redraw(weights_DG) for weights_DG in group_weights(groups, draws, seed, len(groups_N))]
    )
    unseen = [_unseen(strata, groups_N, tail) for strata in (None, strata_N)]
    intervals = []
    least_K, most_K = (np.broadcast_to(end, len(value_K)).tolist() for end in (low, high))
    for value, least, most, drawn_D in zip(
        value_K.tolist(), least_K, most_K, values_DK.T, strict=True
    ):
        values_D = drawn_D[~np.isnan(drawn_D)]
        if math.isnan(value) or not len(values_D):
            intervals.append(Interval(value, nothing, nothing))
            continue
        first, last = (float(bound) for bound in np.quantile(values_D, [tail, 1 - tail]))
        share = unseen[last - first < _SAME]
        first = value - math.hypot(max(0.0, value - first), share * (value - least))
        last = value + math.hypot(max(0.0, last - value), share * (most - value))
        intervals.append(Interval(value, max(least, first), min(most, last)))
    return intervals


def paired_interval(
    first: Measure,
    second: Measure,
    groups_N: ArrayLike,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return `first` minus `second` on the same images, both from the same resampled groups.

    The difference of two biased measures lies between the differences of their own bounds instead:
    cautious, since it does not use that the images are the same.
    """
    if first.biased or second.biased:
        one, other = (
            confidence_interval(side, groups_N, draws=draws, level=level, seed=seed)
            for side in (first, second)
        )
        return Interval(one.value - other.value, one.low - other.high, one.high - other.low)
    return bootstrap_interval(first - second, groups_N, draws=draws, level=level, seed=seed)


def _unseen(strata_N: Ints | None, groups_N: Ints, tail: float) -> float:
    """Return the largest share of images that may be of a kind which the sample does not have.

    With the probability `tail` no such image is among as many as the groups are worth. With strata
    the share is that of a mean over classes, each with its own unseen images.
    """
    classes_N = np.zeros(len(groups_N), dtype=int) if strata_N is None else strata_N
    labels = np.unique(classes_N)
    unseen = [1 - tail ** (1 / effective_size(groups_N[classes_N == label])) for label in labels]
    return math.hypot(*unseen) / len(labels)


def group_weights(groups: int, draws: int, seed: int, images: int) -> Iterator[Floats]:
    """Yield chunks of weights_DG: how often each draw holds each group."""
    random = np.random.default_rng(seed)
    step = max(1, _CHUNK // images)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picked_DG = random.integers(groups, size=(rows, groups))
        flat = picked_DG + np.arange(rows)[:, None] * groups
        yield np.bincount(flat.ravel(), minlength=rows * groups).reshape(rows, groups).astype(float)


@dataclass(frozen=True, slots=True)
class McNemar:
    """How many images only one of two predictors names rightly, and the two-sided p-value."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first_right_N: Bools, second_right_N: Bools) -> McNemar:
    """Test whether both are right equally often (McNemar 1947; exact binomial form).

    It takes every image for an independent trial: with several images a group the p-value is
    too small, and the paired bootstrap over groups is the one to believe.
    """
    if first_right_N.shape != second_right_N.shape:
        raise ValueError(
            f"both predictors must have the same images, but the shapes are {first_right_N.shape} "
            f"and {second_right_N.shape}"
        )
    first = int((first_right_N & ~second_right_N).sum())
    second = int((~first_right_N & second_right_N).sum())
    n = first + second
    # Whole numbers: exact for any n, where a float would underflow.
    tail = ways = 1
    for k in range(min(first, second)):
        ways = ways * (n - k) // (k + 1)
        tail += ways
    return McNemar(first, second, min(1.0, 2 * tail / 2**n))


# N = images, G = groups, D = bootstrap draws, K = parts, U = units, P = permutations

_UNITS = 1 << 21  # units of permutations held in memory at once: 16 MiB


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
    step, at_least = max(1, _UNITS // len(pairs)), 0
    for start in range(0, permutations, step):
        orders_PU = np.tile(part_U, (min(step, permutations - start), 1))
        for units in strata:
            orders_PU[:, units] = random.permuted(orders_PU[:, units], axis=1)
        at_least += int((gaps(orders_PU) >= gap - 1e-12).sum())
    return GapTest(gap, (at_least + 1) / (permutations + 1), permutations)
