"""How sure a figure is: bootstrap over groups, and Wilson's interval for a share."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from skindx.metrics.inputs import Floats
from skindx.metrics.measure import Measure

# N = pictures, G = groups, D = bootstrap draws

_CHUNK = 1 << 22  # weights held in memory at once: 32 MiB


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and the interval around it; `low` and `high` are NaN when nothing bounds it."""

    value: float
    low: float
    high: float


def bootstrap_interval(
    measure: Measure,
    groups_N: ArrayLike,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the percentile bootstrap interval (Efron 1979), resampling whole groups.

    Pictures of one group (patient, lesion, cluster of duplicates) are drawn together, since they
    are no independent evidence. The same seed and groups give the same draws for every measure.
    A biased measure gets the reflected ("basic") interval, widened to hold its own value. With
    a single group the interval is NaN; draws in which the measure is not defined do not count.
    """
    _, index_N = np.unique(np.asarray(groups_N), return_inverse=True)
    if index_N.shape != (measure.pictures,):
        raise ValueError(f"{measure.pictures} pictures, but groups are {index_N.shape}")
    groups = int(index_N.max()) + 1
    value = measure.value
    if groups == 1 or math.isnan(value):
        return Interval(value, float("nan"), float("nan"))
    redraw = measure.redraw(index_N, groups)
    values_D = np.concatenate(
        [redraw(weights_DG) for weights_DG in _draw(groups, draws, seed, measure.pictures)]
    )
    values_D = values_D[~np.isnan(values_D)]
    if not len(values_D):
        return Interval(value, float("nan"), float("nan"))
    tail = (1 - level) / 2
    low, high = (float(bound) for bound in np.quantile(values_D, [tail, 1 - tail]))
    if measure.biased:
        # A draw stands as far off the sample as the sample off the truth, to the same side: the
        # percentiles would double that bias, their mirror image at the value takes it back.
        low, high = min(value, 2 * value - high), max(value, 2 * value - low)
        low, high = max(measure.low, low), min(measure.high, high)
    return Interval(value, low, high)


def paired_interval(
    first: Measure,
    second: Measure,
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


def _draw(groups: int, draws: int, seed: int, pictures: int) -> Iterator[Floats]:
    """Yield chunks of weights_DG: how often each draw holds each group."""
    random = np.random.default_rng(seed)
    step = max(1, _CHUNK // pictures)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        picked_DG = random.integers(groups, size=(rows, groups))
        flat = picked_DG + np.arange(rows)[:, None] * groups
        yield np.bincount(flat.ravel(), minlength=rows * groups).reshape(rows, groups).astype(float)
