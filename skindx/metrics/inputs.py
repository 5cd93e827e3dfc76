"""Shared parts of metrics: checked arrays, ranks and bins, a figure with its interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# N = images, C = classes

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its confidence interval; `low` and `high` are NaN when nothing bounds it."""

    value: float
    low: float
    high: float


def check(probabilities_NC: Floats, truth_N: Ints) -> None:
    """Raise ValueError unless there is one finite row of probabilities for each true class."""
    if probabilities_NC.ndim != 2 or len(probabilities_NC) == 0:
        raise ValueError(f"need probabilities (images, classes), got {probabilities_NC.shape}")
    if truth_N.shape != probabilities_NC.shape[:1]:
        raise ValueError(f"{len(probabilities_NC)} predictions, but truth is {truth_N.shape}")
    if truth_N.min() < 0 or truth_N.max() >= probabilities_NC.shape[1]:
        raise ValueError(f"true classes must be in 0..{probabilities_NC.shape[1] - 1}")
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("probabilities must be finite")


def truth_rank(probabilities_NC: Floats, truth_N: Ints) -> NDArray[np.intp]:
    """Return how many classes stand before the true one; of equals the first stands first."""
    check(probabilities_NC, truth_N)
    truth_N1 = truth_N[:, None]
    own_N1 = np.take_along_axis(probabilities_NC, truth_N1, axis=1)
    before_NC = np.arange(probabilities_NC.shape[1]) < truth_N1
    ahead_NC = (probabilities_NC > own_N1) | ((probabilities_NC == own_N1) & before_NC)
    rank_N: NDArray[np.intp] = ahead_NC.sum(axis=1)
    return rank_N


def confidence_bin(probabilities_NC: Floats, bins: int) -> NDArray[np.intp]:
    """Return each image's bin of top-1 confidence; bin b is (b/bins, (b+1)/bins]."""
    index_N = np.ceil(probabilities_NC.max(axis=1) * bins).astype(np.intp) - 1
    clipped_N: NDArray[np.intp] = np.clip(index_N, 0, bins - 1)
    return clipped_N
