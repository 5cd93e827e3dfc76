"""How sure a figure is: bootstrap over groups, and Wilson's interval for a share."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from skindx.metrics.statistic import Floats, Statistic

# N = pictures, G = groups, D = bootstrap draws, F = features to total

_CHUNK = 1 << 22  # weights held in memory at once: 32 MiB


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and the interval around it; `low` and `high` are NaN when nothing bounds it."""

    value: float
    low: float
    high: float


def bootstrap_interval(
    statistic: Statistic,
    groups_N: ArrayLike,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the percentile bootstrap interval (Efron 1979), resampling whole groups.

    Pictures of one group (patient, lesion, cluster of duplicates) are drawn together, since they
    are no independent evidence. The same seed and groups give the same draws for every statistic.
    A biased statistic gets the reflected ("basic") interval, widened to hold its own value. With
    a single group the interval is NaN.
    """
    _, index_N = np.unique(np.asarray(groups_N), return_inverse=True)
    features_NF = statistic.features_NF
    if index_N.shape != (len(features_NF),):
        raise ValueError(f"{len(features_NF)} pictures, but groups are {index_N.shape}")
    groups = int(index_N.max()) + 1
    if groups == 1:
        return Interval(statistic.value, float("nan"), float("nan"))
    totals_GF = np.zeros((groups, features_NF.shape[1]))
    np.add.at(totals_GF, index_N, features_NF)
    values_D = np.concatenate(
        [statistic.finish(w_DG @ totals_GF) for w_DG in _draw(groups, draws, seed)]
    )
    tail = (1 - level) / 2
    low, high = (float(bound) for bound in np.quantile(values_D, [tail, 1 - tail]))
    value = statistic.value
    if statistic.biased:
        # A draw stands as far off the sample as the sample off the truth, to the same side: the
        # percentiles would double that bias, their mirror image at the value takes it back.
        low, high = min(value, 2 * value - high), max(value, 2 * value - low)
        low, high = max(statistic.low, low), min(statistic.high, high)
    return Interval(value, low, high)


def paired_interval(
    first: Statistic,
    second: Statistic,
    groups_N: ArrayLike,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return `first` minus `second` on the same pictures, both from the same resampled groups."""
    return bootstrap_interval(first - second, groups_N, draws=draws, level=level, seed=seed)


def wilson_interval(share: float, n: float, *, level: float = 0.95) -> Interval:
    """Return Wilson's score interval (1927) of a share seen in `n` independent trials.

    It stays honest at 0, at 1 and for few trials, where a bootstrap collapses to a point.
    """
    if n <= 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    # Rounding must not push the bounds past the share itself, at 0 and at 1.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def effective_size(groups_N: ArrayLike) -> float:
    """Return how many independent pictures the groups are worth (Kish 1965), at most N.

    Pictures of one group are taken as fully alike, which is the cautious end.
    """
    _, size_G = np.unique(np.asarray(groups_N), return_counts=True)
    return float(size_G.sum() ** 2 / (size_G**2).sum()) if size_G.size else 0.0


def _draw(groups: int, draws: int, seed: int) -> Iterator[Floats]:
    """Yield chunks of weights_DG: how often each draw holds each group."""
    random = np.random.default_rng(seed)
    step = max(1, _CHUNK // groups)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picked_DG = random.integers(groups, size=(rows, groups))
        flat = picked_DG + np.arange(rows)[:, None] * groups
        yield np.bincount(flat.ravel(), minlength=rows * groups).reshape(rows, groups).astype(float)
