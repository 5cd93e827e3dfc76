"""Statistics as functions of weighted totals, so that a bootstrap draw is one matrix product.

Every measure here depends on the pictures only through sums: hits, counts of a class, gaps in a
confidence bin. A draw gives each picture a weight; its totals are `weights_DN @ features_NF`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# N = pictures, C = classes, B = confidence bins, D = bootstrap draws, F = features to total

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Statistic:
    """A measure of N pictures: `finish` turns their totals (D, F) into values (D,).

    `low` and `high` are the least and the greatest value that the measure can take; `biased` says
    that a sample's value, and more so a draw's, stands off the population's to one side.
    """

    features_NF: Floats
    finish: Callable[[Floats], Floats]
    low: float = 0.0
    high: float = 1.0
    biased: bool = False

    @property
    def value(self) -> float:
        """The measure of the pictures as they are."""
        return float(self.finish(self.features_NF.sum(axis=0, keepdims=True))[0])

    @classmethod
    def top_k(cls, probabilities_NC: Floats, truth_N: Ints, k: int) -> "Statistic":
        """Share of pictures whose true class is among the k likeliest."""
        hits_N = truth_rank(probabilities_NC, truth_N) < k
        return cls(_with_ones(hits_N), lambda totals_DF: totals_DF[:, 0] / totals_DF[:, 1])

    @classmethod
    def balanced_accuracy(cls, probabilities_NC: Floats, truth_N: Ints) -> "Statistic":
        """Mean sensitivity of the classes that are present (in a draw: of those drawn)."""
        check(probabilities_NC, truth_N)
        classes = probabilities_NC.shape[1]
        truth_NC = np.eye(classes)[truth_N]
        hits_N = probabilities_NC.argmax(axis=1) == truth_N

        def finish(totals_DF: Floats) -> Floats:
            hits_DC, count_DC = totals_DF[:, :classes], totals_DF[:, classes:]
            share_DC = np.divide(hits_DC, count_DC, out=np.zeros_like(hits_DC), where=count_DC > 0)
            mean_D: Floats = share_DC.sum(axis=1) / (count_DC > 0).sum(axis=1)
            return mean_D

        return cls(np.hstack([truth_NC * hits_N[:, None], truth_NC]), finish)

    @classmethod
    def calibration_error(
        cls, probabilities_NC: Floats, truth_N: Ints, bins: int = 15
    ) -> "Statistic":
        """Mean gap of confidence and accuracy (Guo et al. 2017, equation 3)."""
        check(probabilities_NC, truth_N)
        hits_N = probabilities_NC.argmax(axis=1) == truth_N
        gap_N = hits_N - probabilities_NC.max(axis=1)
        gap_NB = np.eye(bins)[confidence_bin(probabilities_NC, bins)] * gap_N[:, None]

        def finish(totals_DF: Floats) -> Floats:
            error_D: Floats = np.abs(totals_DF[:, :-1]).sum(axis=1) / totals_DF[:, -1]
            return error_D

        # Noise opens a gap in every bin, and a gap counts whichever way it points.
        return cls(_with_ones(gap_NB), finish, biased=True)

    def __sub__(self, other: "Statistic") -> "Statistic":
        """Return the difference of two measures of the same pictures, in the same order."""
        width = self.features_NF.shape[1]
        if len(self.features_NF) != len(other.features_NF):
            raise ValueError(
                f"a paired difference needs the same pictures, not {len(self.features_NF)} "
                f"and {len(other.features_NF)}"
            )
        return Statistic(
            np.hstack([self.features_NF, other.features_NF]),
            lambda totals_DF: (
                self.finish(totals_DF[:, :width]) - other.finish(totals_DF[:, width:])
            ),
            self.low - other.high,
            self.high - other.low,
            self.biased or other.biased,
        )


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
    """Return each picture's bin of top-1 confidence; bin b is (b/bins, (b+1)/bins]."""
    index_N = np.ceil(probabilities_NC.max(axis=1) * bins).astype(np.intp) - 1
    clipped_N: NDArray[np.intp] = np.clip(index_N, 0, bins - 1)
    return clipped_N


def check(probabilities_NC: Floats, truth_N: Ints) -> None:
    """Raise ValueError unless there is one finite row of probabilities for each true class."""
    if probabilities_NC.ndim != 2 or len(probabilities_NC) == 0:
        raise ValueError(f"need probabilities (pictures, classes), got {probabilities_NC.shape}")
    if truth_N.shape != probabilities_NC.shape[:1]:
        raise ValueError(f"{len(probabilities_NC)} predictions, but truth is {truth_N.shape}")
    if truth_N.min() < 0 or truth_N.max() >= probabilities_NC.shape[1]:
        raise ValueError(f"true classes must be in 0..{probabilities_NC.shape[1] - 1}")
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("probabilities must be finite")


def _with_ones(features: NDArray[np.generic]) -> Floats:
    columns_NF = features.reshape(len(features), -1).astype(np.float64)
    return np.hstack([columns_NF, np.ones((len(columns_NF), 1))])
