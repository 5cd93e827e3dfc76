"""A figure of images that a bootstrap can compute again when it weights their groups."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.metrics.share_intervals import (
    Bools,
    Floats,
    Interval,
    Ints,
    bin_of,
    calibration_interval,
    check_probabilities,
    class_mean_interval,
    confidence_bin,
    share_interval,
    truth_rank,
)

# N = images, C = classes, B = confidence bins, G = groups, D = bootstrap draws, F = features to
# total, P = images of a class, M = images of the others

ClosedForm = Callable[[Ints, float], Interval]
"""Turns groups_N and a level into the figure with its interval."""

Redraw = Callable[[Floats], Floats]
"""Turns weights_DG, how often each draw holds each group, into the figure's values_D."""


class Measure(ABC):
    """A figure of N images.

    `low` and `high` are the least and the greatest value that it can take; `biased` says that a
    sample's value, and more so a draw's, stands off the population's to one side. `strata` is the
    class of each image where the figure is a mean over classes.
    """

    low: float
    high: float
    biased: bool
    closed_form: ClosedForm | None = None
    strata: Ints | None = None

    @property
    @abstractmethod
    def images(self) -> int:
        """How many images it was made from."""

    @abstractmethod
    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        """Prepare for draws of `groups` groups; `index_N` holds the group of each image."""

    @property
    def value(self) -> float:
        """The figure of the images as they are; NaN where it is not defined."""
        whole = self.redraw(np.zeros(self.images, dtype=np.intp), 1)
        return float(whole(np.ones((1, 1)))[0])

    def __sub__(self, other: "Measure") -> "MeasureDifference":
        """Return the difference of two figures of the same images, in the same order."""
        if self.images != other.images:
            raise ValueError(
                "a paired difference needs the same number of images, but there are "
                f"{self.images} and {other.images}"
            )
        return MeasureDifference(self, other)


@dataclass(frozen=True, slots=True)
class MeasureDifference(Measure):
    """One figure minus another, both of the same draw."""

    first: Measure
    second: Measure

    @property
    def low(self) -> float:  # type: ignore[override]
        return self.first.low - self.second.high

    @property
    def high(self) -> float:  # type: ignore[override]
        return self.first.high - self.second.low

    @property
    def biased(self) -> bool:  # type: ignore[override]
        """Whether one of the two is."""
        return self.first.biased or self.second.biased

    @property
    def images(self) -> int:
        return self.first.images

    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        first, second = (measure.redraw(index_N, groups) for measure in (self.first, self.second))
        return lambda weights_DG: first(weights_DG) - second(weights_DG)


@dataclass(frozen=True, slots=True)
class Statistic(Measure):
    """A measure of N images: `finish` turns their totals (D, F) into values (D,).

    It depends on the images only through sums: hits, counts of a class, gaps in a confidence bin.
    The totals of a draw are `weights_DG @ totals_GF`: one matrix product.
    """

    features_NF: Floats
    finish: Callable[[Floats], Floats]
    low: float = 0.0
    high: float = 1.0
    biased: bool = False
    closed_form: ClosedForm | None = None
    strata: Ints | None = None

    @property
    def images(self) -> int:
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
            raise ValueError(
                "the values must have one number for each image, but their shape is "
                f"{values_N.shape}"
            )
        return cls(_with_ones(values_N), lambda totals_DF: totals_DF[:, 0] / totals_DF[:, 1],
                   low, high)  # fmt: skip

    @classmethod
    def share(cls, hits_N: Bools) -> "Statistic":
        """Share of images that are hits."""
        if hits_N.ndim != 1 or len(hits_N) == 0:
            raise ValueError(f"the hits need one value for each image, not {hits_N.shape}")

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
        check_probabilities(probabilities_NC, truth_N)
        truth_NC = np.eye(probabilities_NC.shape[1])[truth_N]
        return cls.mean(((probabilities_NC - truth_NC) ** 2).sum(axis=1), high=2.0)

    @classmethod
    def log_loss(cls, probabilities_NC: Floats, truth_N: Ints) -> "Statistic":
        """Mean of -log of the true class's probability, in nats; a probability of 0 as 1e-300.

        A sample tells nothing of images that are worse than its worst, so `high` is that one's.
        """
        check_probabilities(probabilities_NC, truth_N)
        true_N = probabilities_NC[np.arange(len(truth_N)), truth_N]
        loss_N = -np.log(np.maximum(true_N, 1e-300))
        return cls.mean(loss_N, high=float(loss_N.max()))

    @classmethod
    def observed_over_expected(
        cls, probabilities_NC: Floats, truth_N: Ints, classes: Collection[int]
    ) -> "Statistic":
        """Images of some classes over the sum of these classes' probabilities: 1 is calibrated.

        More than 1: they are commoner than the probabilities say. NaN where the sum is 0. Its
        bootstrap interval has a width where none is observed too: `high` is the figure that all
        images would give, of which the unseen share may be missed.
        """
        check_probabilities(probabilities_NC, truth_N)
        columns = sorted(classes)
        expected_N = probabilities_NC[:, columns].sum(axis=1)
        observed_N = np.isin(truth_N, columns)

        def finish(totals_DF: Floats) -> Floats:
            return _divide(totals_DF[:, 0], totals_DF[:, 1])

        total = float(expected_N.sum())
        high = len(truth_N) / total if total else math.inf
        return cls(np.column_stack([observed_N, expected_N]).astype(float), finish, high=high)

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
            raise ValueError(
                "values and truth must have one number for each image, but their shapes are "
                f"{values_N.shape} and {truth_N.shape}"
            )
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
        check_probabilities(probabilities_NC, truth_N)
        hits_N = probabilities_NC.argmax(axis=1) == truth_N

        def closed_form(groups_N: Ints, level: float) -> Interval:
            return class_mean_interval(hits_N, truth_N, groups_N, level=level)

        mean = cls.class_mean(hits_N, truth_N, probabilities_NC.shape[1])
        return dataclasses.replace(mean, closed_form=closed_form)

    @classmethod
    def macro_f1(cls, probabilities_NC: Floats, truth_N: Ints) -> "Statistic":
        """Mean over the present classes of F1: 2 hits / (images of it + images called it)."""
        check_probabilities(probabilities_NC, truth_N)
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
        check_probabilities(probabilities_NC, truth_N)
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


@dataclass(frozen=True, slots=True)
class ClasswiseGaps(Measure):
    """Mean over classes of the binned calibration error of each class's probability.

    Kull et al. 2019, "Beyond temperature scaling" (classwise ECE): in each bin of p_k, the share of
    images of the class minus the mean of p_k; absolute values, weighted by the images of the bin.
    The error of the likeliest class alone hides a class whose probabilities are all too low.
    """

    gap_NC: Floats
    bin_NC: Ints
    """Bins of all classes, counted through."""
    bins: int
    closed_form: ClosedForm | None = None
    low: float = 0.0
    high: float = 1.0
    biased: bool = True
    strata: Ints | None = None

    @classmethod
    def measure(cls, probabilities_NC: Floats, truth_N: Ints, bins: int = 15) -> "ClasswiseGaps":
        """Compare the probability of each class with its share, in bins of equal width."""
        check_probabilities(probabilities_NC, truth_N)
        classes = probabilities_NC.shape[1]
        truth_NC = np.eye(classes)[truth_N]
        gap_NC = truth_NC - probabilities_NC
        bin_NC = bin_of(probabilities_NC, bins) + bins * np.arange(classes)

        def closed_form(groups_N: Ints, level: float) -> Interval:
            flat = gap_NC.ravel(), bin_NC.ravel(), truth_NC.ravel()
            return calibration_interval(*flat, groups_N, level=level)

        return cls(gap_NC, bin_NC, bins * classes, closed_form)

    @property
    def images(self) -> int:
        return len(self.gap_NC)

    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        """Total the gaps of each group and bin once."""
        cells = (self.bin_NC + self.bins * index_N[:, None]).ravel()
        gap_GB = np.bincount(cells, self.gap_NC.ravel(), minlength=groups * self.bins)
        gap_GB, images_G = gap_GB.reshape(groups, -1), np.bincount(index_N, minlength=groups)
        classes = self.gap_NC.shape[1]

        def finish(weights_DG: Floats) -> Floats:
            total_D = np.abs(weights_DG @ gap_GB).sum(axis=1)
            error_D: Floats = total_D / (weights_DG @ images_G) / classes
            return error_D

        return finish


@dataclass(frozen=True, slots=True)
class Ranked(Measure):
    """A measure of their order: `weigh` turns weights (D, N) into values (D,).

    The images are sorted once; each draw is weighted sums along them.
    """

    weigh: Callable[[Floats], Floats]
    images: int
    low: float = 0.0
    high: float = 1.0
    biased: bool = False
    strata: Ints | None = None

    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        """Give each image the weight of its group."""
        return lambda weights_DG: self.weigh(weights_DG[:, index_N])

    @classmethod
    def auroc(
        cls, probabilities_NC: Floats, truth_N: Ints, classes: Collection[int] | None = None
    ) -> "Ranked":
        """Mean over (some) classes of the area under the ROC curve of one against the rest.

        That is the chance that an image of the class has the greater probability of it than one
        of another class, ties counting half (Hanley and McNeil 1982). Classes without an image,
        or without an image of another class, have no area and are left out.
        """
        check_probabilities(probabilities_NC, truth_N)
        classes_NC = np.eye(probabilities_NC.shape[1], dtype=bool)[truth_N]
        areas = [
            _area(scores_N, class_N)
            for c, (scores_N, class_N) in enumerate(
                zip(probabilities_NC.T, classes_NC.T, strict=True)
            )
            if (classes is None or c in classes) and class_N.any() and not class_N.all()
        ]

        def weigh(weights_DN: Floats) -> Floats:
            total_D, defined_D = np.zeros(len(weights_DN)), np.zeros(len(weights_DN))
            for area in areas:
                area_D = area(weights_DN)
                total_D += np.nan_to_num(area_D)
                defined_D += np.isfinite(area_D)
            return _divide(total_D, defined_D)

        return cls(weigh, len(truth_N), strata=truth_N)

    @classmethod
    def selective_risk_area(cls, probabilities_NC: Floats, truth_N: Ints) -> "Ranked":
        """Mean error of the images at least as confident as one of them, over all of them.

        The area under the risk-coverage curve (AURC; Geifman, Uziel and El-Yaniv 2019): small when
        the errors are where the confidence is low, so that leaving those to a person pays.
        """
        check_probabilities(probabilities_NC, truth_N)
        order_N, end_N = by_confidence(probabilities_NC)
        wrong_N = (probabilities_NC.argmax(axis=1) != truth_N)[order_N]

        def weigh(weights_DN: Floats) -> Floats:
            sorted_DN = weights_DN[:, order_N]
            wrong_DN = (sorted_DN * wrong_N).cumsum(axis=1)[:, end_N]
            risk_DN = _divide(wrong_DN, sorted_DN.cumsum(axis=1)[:, end_N])
            # Nothing is drawn yet where the risk is not defined, so its weight there is nought.
            area_D: Floats = (sorted_DN * np.nan_to_num(risk_DN)).sum(axis=1) / sorted_DN.sum(
                axis=1
            )
            return area_D

        return cls(weigh, len(truth_N))


def by_confidence(probabilities_NC: Floats) -> tuple[Ints, Ints]:
    """Return the images, most confident first, and for each place the last one of equals."""
    confidence_N = probabilities_NC.max(axis=1)
    order_N = np.argsort(-confidence_N, kind="stable")
    rising_N = np.sort(-confidence_N)
    return order_N, np.searchsorted(rising_N, rising_N, side="right") - 1


def _area(scores_N: Floats, class_N: Bools) -> Callable[[Floats], Floats]:
    """Return the function of weights_DN to the area of one class against the rest."""
    class_P, rest = np.flatnonzero(class_N), np.flatnonzero(~class_N)
    rest_M = rest[np.argsort(scores_N[rest], kind="stable")]
    below_P = np.searchsorted(scores_N[rest_M], scores_N[class_P], side="left")
    up_to_P = np.searchsorted(scores_N[rest_M], scores_N[class_P], side="right")

    def area(weights_DN: Floats) -> Floats:
        weights_DP = weights_DN[:, class_P]
        rising = np.zeros((len(weights_DN), len(rest_M) + 1))
        np.cumsum(weights_DN[:, rest_M], axis=1, out=rising[:, 1:])
        beaten_DP = (rising[:, below_P] + rising[:, up_to_P]) / 2
        return _divide((weights_DP * beaten_DP).sum(axis=1), weights_DP.sum(axis=1) * rising[:, -1])

    return area


def _divide(part: Floats, whole: Floats) -> Floats:
    share = np.full(np.broadcast_shapes(part.shape, whole.shape), np.nan)
    np.divide(part, whole, out=share, where=whole > 0)
    return share
