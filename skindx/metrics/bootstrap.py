"""The interval of a measure: in closed form where it has one, else by bootstrap over groups."""

import math
from collections.abc import Iterator
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
        raise ValueError(f"{measure.images} images, but groups are {index_N.shape}")
    groups = int(index_N.max()) + 1
    value = measure.value
    if groups == 1 or math.isnan(value):
        return Interval(value, float("nan"), float("nan"))
    redraw = measure.redraw(index_N, groups)
    values_D = np.concatenate(
        [redraw(weights_DG) for weights_DG in _draw(groups, draws, seed, measure.images)]
    )
    values_D = values_D[~np.isnan(values_D)]
    if not len(values_D):
        return Interval(value, float("nan"), float("nan"))
    tail = (1 - level) / 2
    low, high = (float(bound) for bound in np.quantile(values_D, [tail, 1 - tail]))
    unseen = _unseen(measure, groups_N, tail, by_class=high - low < _SAME)
    low = value - math.hypot(max(0.0, value - low), unseen * (value - measure.low))
    high = value + math.hypot(max(0.0, high - value), unseen * (measure.high - value))
    return Interval(value, max(measure.low, low), min(measure.high, high))


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


def _unseen(measure: Measure, groups_N: Ints, tail: float, *, by_class: bool) -> float:
    """Return the largest share of images that may be of a kind which the sample does not have.

    With the probability `tail` no such image is among as many as the groups are worth. With
    `by_class` the share is that of a mean over classes, each with its own unseen images.
    """
    classes_N = np.zeros(len(groups_N), dtype=int)
    if by_class and measure.strata is not None:
        classes_N = measure.strata
    labels = np.unique(classes_N)
    unseen = [1 - tail ** (1 / effective_size(groups_N[classes_N == label])) for label in labels]
    return math.hypot(*unseen) / len(labels)


def _draw(groups: int, draws: int, seed: int, images: int) -> Iterator[Floats]:
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
            f"need the same images, got {first_right_N.shape} and {second_right_N.shape}"
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
