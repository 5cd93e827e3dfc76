"""Figures with closed intervals: shares of groups of images, and the calibration error.

The intervals hold their level at 0, at 1, and for few images.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# N = images, C = classes, G = groups, B = bins of confidence, D = simulated draws

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its confidence interval; `low` and `high` are NaN when nothing bounds it."""

    value: float
    low: float
    high: float


def check_probabilities(probabilities_NC: Floats, truth_N: Ints) -> None:
    """Raise ValueError unless there is one finite row of probabilities for each true class."""
    if probabilities_NC.ndim != 2 or len(probabilities_NC) == 0:
        raise ValueError(
            "the probabilities must have the shape (images, classes), but have "
            f"{probabilities_NC.shape}"
        )
    if truth_N.shape != probabilities_NC.shape[:1]:
        raise ValueError(
            f"{len(probabilities_NC)} predictions were given, but truth has the shape "
            f"{truth_N.shape}"
        )
    if truth_N.min() < 0 or truth_N.max() >= probabilities_NC.shape[1]:
        raise ValueError(f"true classes must be in 0..{probabilities_NC.shape[1] - 1}")
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("probabilities must be finite")


def truth_rank(probabilities_NC: Floats, truth_N: Ints) -> NDArray[np.intp]:
    """Return how many classes stand before the true one; of equals the first stands first."""
    check_probabilities(probabilities_NC, truth_N)
    truth_N1 = truth_N[:, None]
    true_N1 = np.take_along_axis(probabilities_NC, truth_N1, axis=1)
    before_NC = np.arange(probabilities_NC.shape[1]) < truth_N1
    ahead_NC = (probabilities_NC > true_N1) | ((probabilities_NC == true_N1) & before_NC)
    rank_N: NDArray[np.intp] = ahead_NC.sum(axis=1)
    return rank_N


def confidence_bin(probabilities_NC: Floats, bins: int) -> NDArray[np.intp]:
    """Return each image's bin of top-1 confidence; bin b is (b/bins, (b+1)/bins]."""
    return bin_of(probabilities_NC.max(axis=1), bins)


def bin_of(shares: Floats, bins: int) -> NDArray[np.intp]:
    """Return the bin of each number in 0..1, in their shape; bin b is (b/bins, (b+1)/bins]."""
    clipped: NDArray[np.intp] = np.clip(np.ceil(shares * bins).astype(np.intp) - 1, 0, bins - 1)
    return clipped


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
        share_interval(hits_N[class_N], groups_N[class_N], level=level)
        for class_N in (classes_N == label for label in np.unique(classes_N))
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


def difference_of(first: Interval, second: Interval) -> Interval:
    """Return `first` minus `second`, of independent samples, by the square-and-add rule."""
    value = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
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


_DRAWS = 4000
_CLEAR = 3.0
"""A bin's gap has a clear sign when it is so many standard errors wide."""


def calibration_interval(
    gaps_N: Floats, bins_N: Ints, hits_N: Floats, groups_N: ArrayLike, *, level: float = 0.95
) -> Interval:
    """Return sum over bins of |mean gap| and its interval; `gaps_N` is hit minus confidence.

    A bootstrap cannot do this: the sum of absolute values is not smooth where a bin's gap is zero,
    and noise opens a gap in every bin, so the estimate is biased upwards. Per bin, with true gap
    d and its estimate d + z, the triangle inequality gives sign(d) z <= |d + z| - |d| <= |z|. The
    upper bound takes the left side and the lower bound the right side, where the sign of the gap
    is not clear; where it is, both take the left side (the directional delta method: Fang and
    Santos 2019, "Inference on directionally differentiable functions"). The interval is therefore
    cautious: it covers more often than `level` near a true error of zero.

    Several gaps an image, such as one a class, stand one after another, each with bins of its own;
    the result is then their mean, and `groups_N` still names each image once.
    """
    groups_N = np.asarray(groups_N)
    n, bins = len(gaps_N), int(bins_N.max()) + 1
    gap_B = np.bincount(bins_N, gaps_N, minlength=bins) / n
    alike = np.sqrt(len(groups_N) / effective_size(groups_N))
    error_B = _standard_error(bins_N, hits_N, bins) * alike
    value = float(np.abs(gap_B).sum())
    clear_B = np.abs(gap_B) > _CLEAR * error_B
    noise_DB = np.random.default_rng(0).standard_normal((_DRAWS, bins)) * error_B
    excess_D = np.where(clear_B, noise_DB, np.abs(noise_DB)).sum(axis=1)
    tail = (1 - level) / 2
    low = value - float(np.quantile(excess_D, 1 - tail))
    high = value - float(np.quantile(noise_DB.sum(axis=1), tail))
    return Interval(value, min(value, max(0.0, low)), min(1.0, max(value, high)))


def _standard_error(bins_N: Ints, hits_N: Floats, bins: int) -> Floats:
    """Return the standard error of each bin's gap over all images, for independent images.

    A share of hits near 0 or 1 is drawn in by four more trials (Agresti and Coull 1998): a bin
    with one image has an error too.
    """
    count_B = np.bincount(bins_N, minlength=bins)
    share_B = (np.bincount(bins_N, hits_N, minlength=bins) + 2) / (count_B + 4)
    error_B: Floats = np.sqrt(count_B * share_B * (1 - share_B)) / len(hits_N)
    return error_B
