"""Intervals of shares that hold their level at 0, at 1, for few images and for groups of images."""

import math

import numpy as np
from numpy.typing import ArrayLike

from skindx.metrics.inputs import Bools, Floats, Interval, Ints

# N = images, G = groups, C = classes


def effective_size(groups_N: ArrayLike) -> float:
    """Return how many independent images the groups are worth (Kish 1965), at most N.

    It takes the images of one group as fully alike, which is the cautious end.
    """
    _, size_G = np.unique(np.asarray(groups_N), return_counts=True)
    return float(size_G.sum() ** 2 / (size_G**2).sum()) if size_G.size else 0.0


def proportion_interval(share: float, n: float, *, level: float = 0.95) -> Interval:
    """Return the exact interval (Clopper and Pearson 1934) of a share of `n` independent trials.

    `n` may be a fraction: an effective number of trials. Its width is never zero, and its coverage
    is at least `level` for whole numbers of trials. NaN bounds without a trial.
    """
    from scipy.stats import beta

    if n <= 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    tail = (1 - level) / 2
    # Rounding of an effective size must not leave the range of the beta distribution.
    hits, rest = share * n, (1 - share) * n
    low = float(beta.ppf(tail, hits, rest + 1)) if hits > 1e-9 else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, rest)) if rest > 1e-9 else 1.0
    return Interval(share, min(low, share), max(high, share))


def share_interval(hits_N: ArrayLike, groups_N: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the share of hits with its exact interval for dependent images.

    Korn and Graubard 1998 ("Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data", eq. 3.2): Clopper and Pearson's interval for as
    many trials as give the variance between groups. At 0 and at 1, where that variance tells
    nothing, each group counts as one image seen several times (Kish). NaN without an image.
    """
    hits_N, groups_N = np.asarray(hits_N, dtype=float), np.asarray(groups_N)
    n = len(hits_N)
    if n == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    share = float(hits_N.mean())
    return proportion_interval(share, _trials(hits_N, groups_N, level), level=level)


def class_mean_interval(
    hits_N: Bools, classes_N: Ints, groups_N: ArrayLike, *, level: float = 0.95
) -> Interval:
    """Return the mean over classes of their share of hits, with its interval.

    The classes' own intervals are joined by the square-and-add rule (MOVER: Zou and Donner 2008,
    "Construction of confidence limits about effect measures", eq. 5), so that a class with few
    images counts with all its uncertainty, also where every image is a hit. NaN without an image.
    """
    hits_N, groups_N = np.asarray(hits_N), np.asarray(groups_N)
    parts = [
        share_interval(hits_N[own_N], groups_N[own_N], level=level)
        for own_N in (classes_N == label for label in np.unique(classes_N))
    ]
    return mean_of(parts)


def mean_of(parts: list[Interval]) -> Interval:
    """Return the mean of independent figures, their intervals joined by the square-and-add rule."""
    if not parts:
        return Interval(float("nan"), float("nan"), float("nan"))
    value = sum(part.value for part in parts) / len(parts)
    below = math.hypot(*(part.value - part.low for part in parts)) / len(parts)
    above = math.hypot(*(part.high - part.value for part in parts)) / len(parts)
    return Interval(value, value - below, value + above)


def _trials(hits_N: Floats, groups_N: ArrayLike, level: float) -> float:
    """Return the effective number of independent trials, between Kish's number and N."""
    from scipy.stats import norm, t

    _, index_N, size_G = np.unique(np.asarray(groups_N), return_inverse=True, return_counts=True)
    n, groups, share = len(hits_N), len(size_G), float(hits_N.mean())
    least = effective_size(groups_N)
    if groups == 1:
        return least
    trials = least
    if 0 < share < 1:
        excess_G = np.bincount(index_N, hits_N) - share * size_G
        variance = float((excess_G**2).sum()) / n**2 * groups / (groups - 1)
        trials = max(least, min(n, share * (1 - share) / max(variance, 1e-300)))
    # The variance itself is estimated, from so many groups.
    tail = (1 + level) / 2
    return float(trials * (norm.ppf(tail) / t.ppf(tail, groups - 1)) ** 2)
