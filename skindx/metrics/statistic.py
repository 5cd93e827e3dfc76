"""Measures that are functions of weighted totals: a bootstrap draw is one matrix product.

They depend on the images only through sums: hits, counts of a class, gaps in a confidence bin.
The totals of a draw are `weights_DG @ totals_GF`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.metrics.calibration_interval import calibration_interval
from skindx.metrics.inputs import Bools, Floats, Interval, Ints, check, confidence_bin, truth_rank
from skindx.metrics.measure import ClosedForm, Measure, Redraw
from skindx.metrics.proportion import class_mean_interval, share_interval

# N = images, C = classes, B = confidence bins, G = groups, D = bootstrap draws
# F = features to total


@dataclass(frozen=True, slots=True)
class Statistic(Measure):
    """A measure of N images: `finish` turns their totals (D, F) into values (D,)."""

    features_NF: Floats
    finish: Callable[[Floats], Floats]
    low: float = 0.0
    high: float = 1.0
    biased: bool = False
    closed_form: ClosedForm | None = None
    strata: Ints | None = None

    @property
    def images(self) -> int:
        """How many images it was made from."""
        return len(self.features_NF)

    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        """Total the features of each group once."""
        totals_GF = np.zeros((groups, self.features_NF.shape[1]))
        np.add.at(totals_GF, index_N, self.features_NF)
        return lambda weights_DG: self.finish(weights_DG @ totals_GF)

    @classmethod
    def mean(
        cls, values_N: NDArray[np.generic], low: float = 0.0, high: float = 1.0
    ) -> "Statistic":
        """Mean of one number an image."""
        if values_N.ndim != 1 or len(values_N) == 0:
            raise ValueError(f"need one number an image, got {values_N.shape}")
        return cls(_with_ones(values_N), lambda totals_DF: totals_DF[:, 0] / totals_DF[:, 1],
                   low, high)  # fmt: skip

    @classmethod
    def share(cls, hits_N: Bools) -> "Statistic":
        """Share of images that are hits."""
        if hits_N.ndim != 1 or len(hits_N) == 0:
            raise ValueError(f"need one hit or miss an image, got {hits_N.shape}")

        def closed_form(groups_N: Ints, level: float) -> Interval:
            return share_interval(hits_N, groups_N, level=level)

        return dataclasses.replace(cls.mean(hits_N), closed_form=closed_form)

    @classmethod
    def top_k(cls, probabilities_NC: Floats, truth_N: Ints, k: int) -> "Statistic":
        """Share of images whose true class is among the k likeliest."""
        return cls.share(truth_rank(probabilities_NC, truth_N) < k)

    @classmethod
    def brier(cls, probabilities_NC: Floats, truth_N: Ints) -> "Statistic":
        """Mean squared distance to the one-hot truth, summed over classes (Brier 1950)."""
        check(probabilities_NC, truth_N)
        truth_NC = np.eye(probabilities_NC.shape[1])[truth_N]
        return cls.mean(((probabilities_NC - truth_NC) ** 2).sum(axis=1), high=2.0)

    @classmethod
    def set_coverage(cls, sets_NC: Bools, truth_N: Ints) -> "Statistic":
        """Share of images whose set of classes holds the true one."""
        return cls.share(np.take_along_axis(sets_NC, truth_N[:, None], axis=1)[:, 0])

    @classmethod
    def set_size(cls, sets_NC: Bools) -> "Statistic":
        """Mean number of classes in an image's set."""
        return cls.mean(sets_NC.sum(axis=1), high=float(sets_NC.shape[1]))

    @classmethod
    def class_mean(
        cls,
        values_N: NDArray[np.generic],
        truth_N: Ints,
        classes: int,
        low: float = 0.0,
        high: float = 1.0,
    ) -> "Statistic":
        """Mean over the classes that are present of the mean of one number an image.

        A mean of balanced accuracies, or of their differences, is one of these.
        """
        if values_N.shape != truth_N.shape or values_N.ndim != 1 or len(values_N) == 0:
            raise ValueError(f"need one number an image, got {values_N.shape}, {truth_N.shape}")
        truth_NC = np.eye(classes)[truth_N]

        def finish(totals_DF: Floats) -> Floats:
            sum_DC, count_DC = totals_DF[:, :classes], totals_DF[:, classes:]
            return _mean_of_present(sum_DC, count_DC, count_DC > 0)

        values_N1 = values_N[:, None].astype(np.float64)
        features_NF = np.hstack([truth_NC * values_N1, truth_NC])
        return cls(features_NF, finish, low, high, strata=truth_N)

    @classmethod
    def balanced_accuracy(cls, probabilities_NC: Floats, truth_N: Ints) -> "Statistic":
        """Mean sensitivity of the classes that are present (in a draw: of those drawn)."""
        check(probabilities_NC, truth_N)
        hits_N = probabilities_NC.argmax(axis=1) == truth_N

        def closed_form(groups_N: Ints, level: float) -> Interval:
            return class_mean_interval(hits_N, truth_N, groups_N, level=level)

        mean = cls.class_mean(hits_N, truth_N, probabilities_NC.shape[1])
        return dataclasses.replace(mean, closed_form=closed_form)

    @classmethod
    def macro_f1(cls, probabilities_NC: Floats, truth_N: Ints) -> "Statistic":
        """Mean over the present classes of F1: 2 hits / (images of it + images called it)."""
        check(probabilities_NC, truth_N)
        classes = probabilities_NC.shape[1]
        truth_NC = np.eye(classes)[truth_N]
        called_NC = np.eye(classes)[probabilities_NC.argmax(axis=1)]

        def finish(totals_DF: Floats) -> Floats:
            hits_DC, count_DC, called_DC = np.split(totals_DF, 3, axis=1)
            return _mean_of_present(2 * hits_DC, count_DC + called_DC, count_DC > 0)

        return cls(np.hstack([truth_NC * called_NC, truth_NC, called_NC]), finish)

    @classmethod
    def calibration_error(
        cls, probabilities_NC: Floats, truth_N: Ints, bins: int = 15
    ) -> "Statistic":
        """Mean gap of confidence and accuracy (Guo et al. 2017, equation 3)."""
        check(probabilities_NC, truth_N)
        hits_N = probabilities_NC.argmax(axis=1) == truth_N
        gap_N = hits_N - probabilities_NC.max(axis=1)
        bin_N = confidence_bin(probabilities_NC, bins)
        gap_NB = np.eye(bins)[bin_N] * gap_N[:, None]

        def finish(totals_DF: Floats) -> Floats:
            error_D: Floats = np.abs(totals_DF[:, :-1]).sum(axis=1) / totals_DF[:, -1]
            return error_D

        def closed_form(groups_N: Ints, level: float) -> Interval:
            return calibration_interval(gap_N, bin_N, hits_N, groups_N, level=level)

        # Noise opens a gap in every bin, and a gap counts whichever way it points.
        return cls(_with_ones(gap_NB), finish, biased=True, closed_form=closed_form)


def _mean_of_present(part_DC: Floats, whole_DC: Floats, present_DC: Bools) -> Floats:
    share_DC = np.divide(part_DC, whole_DC, out=np.zeros_like(part_DC), where=present_DC)
    mean_D: Floats = share_DC.sum(axis=1) / present_DC.sum(axis=1)
    return mean_D


def _with_ones(features: NDArray[np.generic]) -> Floats:
    columns_NF = features.reshape(len(features), -1).astype(np.float64)
    return np.hstack([columns_NF, np.ones((len(columns_NF), 1))])
