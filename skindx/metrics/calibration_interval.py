"""An interval of the expected calibration error that keeps its level."""

import numpy as np
from numpy.typing import ArrayLike

from skindx.metrics.inputs import Floats, Interval, Ints
from skindx.metrics.proportion import effective_size

# N = images, B = bins of confidence, D = simulated draws

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
    """
    n, bins = len(gaps_N), int(bins_N.max()) + 1
    gap_B = np.bincount(bins_N, gaps_N, minlength=bins) / n
    error_B = _standard_error(bins_N, hits_N, bins) * np.sqrt(n / effective_size(groups_N))
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
