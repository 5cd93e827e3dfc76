"""The figures of the curve: gains with paired intervals over groups, diversity, and the limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from skindx.metrics import Interval, Statistic, bootstrap_interval
from skindx_bench.harness.clock import Figure
from skindx_bench.model_comparison.choice import choose_members
from skindx_bench.model_comparison.curve import Point, Subset, gain_of, limit_weights
from skindx_bench.model_comparison.diversity import (
    ambiguity_N,
    averaging_gain_N,
    disagreement_N,
    error_correlation,
    error_products_N,
    mistake_correlation,
)
from skindx_bench.model_comparison.passes import Floats, FoldPasses, Ints

# M = members, N = test images of all folds, K = numbers of members, P = pairs

_FEWEST_PAIRS = 4
"""Less can not be halved into pairs that are alike and pairs that differ."""


@dataclass(frozen=True)
class Pooled:
    """The test images of all folds, on which every mean and its interval are made."""

    truth_N: Ints
    groups_N: np.ndarray
    classes: int
    folds: int

    @classmethod
    def of(cls, folds: Sequence[FoldPasses]) -> Self:
        """Join the folds, whose test images are disjoint."""
        return cls(
            np.concatenate([fold.test.truth_N for fold in folds]),
            np.concatenate([fold.test.groups_N for fold in folds]),
            next(iter(folds[0].test.members.values())).shape[2],
            len(folds),
        )

    @property
    def weights_N(self) -> Floats:  # noqa: N802
        """One over the number of images of the class: every class counts alike."""
        weights_N: Floats = 1 / np.bincount(self.truth_N, minlength=self.classes)[self.truth_N]
        return weights_N

    def interval(self, measure: Statistic) -> Interval:
        """Return a measure of the images with its interval over groups."""
        return bootstrap_interval(measure, self.groups_N)

    def mean(self, values_N: Floats, low: float, high: float) -> Interval:
        """Return the mean over the classes of one number an image."""
        return self.interval(
            Statistic.class_mean(values_N, self.truth_N, self.classes, low=low, high=high)
        )

    def figure(self, interval: Interval, unit: str, scale: float = 1) -> Figure:
        """Return an interval as a figure."""
        spread = (scale * interval.low, scale * interval.high)
        return Figure(scale * interval.value, unit, self.folds, spread)

    def points(self, values_N: Floats) -> Figure:
        """Return a difference of hits as points of balanced accuracy."""
        return self.figure(self.mean(values_N, -1, 1), "points", 100)

    def percent(self, values_N: Floats) -> Figure:
        """Return hits as balanced accuracy in percent."""
        return self.figure(self.mean(values_N, 0, 1), "%", 100)

    def nats(self, values_N: Floats) -> Figure:
        """Return a loss, which has no greatest value: the interval ends at the greatest seen."""
        return self.figure(self.mean(values_N, 0, max(values_N.max(), 0)), "nats")


def curve_figures(folds: Sequence[FoldPasses], points: Sequence[Point]) -> dict[str, Figure]:
    """Return the curve, the members' diversity, and what infinitely many members would gain."""
    pooled = Pooled.of(folds)
    found: dict[str, Figure] = {}
    for point in points[1:]:
        k, gains = point.members, point.gains
        found[f"curve_gain_{k}"] = pooled.points(gains.over_better_N)
        found[f"curve_gain_mean_{k}"] = pooled.points(gains.over_mean_N)
        found[f"curve_gain_same_cost_{k}"] = pooled.points(gains.over_same_cost_N)
    if len(points) == 1:
        return found
    last = points[-1].gains
    limit_N = limit_over_mean_N(points)
    found["gain_limit_mean"] = pooled.points(limit_N)
    found["better_minus_mean_member"] = pooled.points(last.over_mean_N - last.over_better_N)
    found["gain_limit"] = pooled.points(limit_N - last.over_mean_N + last.over_better_N)
    return found | _pairs(pooled, points[1]) | _diversity(pooled, folds)


def limit_over_mean_N(points: Sequence[Point]) -> Floats:  # noqa: N802
    """Return a of the fit a (1 - 1/k) to the gains over the mean member, for each image."""
    weights_K = limit_weights([point.members for point in points[1:]])
    gains_KN = np.stack([point.gains.over_mean_N for point in points[1:]])
    limit_N: Floats = weights_K @ gains_KN
    return limit_N


def _pairs(pooled: Pooled, pairs: Point) -> dict[str, Figure]:
    """Return what the half of the pairs that differ more gains over its mean member, and less."""
    if len(pairs.each) < _FEWEST_PAIRS:
        return {}
    order_P = np.argsort([gains.disagreement_N.mean() for gains in pairs.each], kind="stable")
    half = len(order_P) // 2
    alike_N, diverse_N = (
        np.mean([pairs.each[pair].over_mean_N for pair in own], axis=0)
        for own in (order_P[:half], order_P[-half:])
    )
    return {
        "pairs_alike_gain_mean": pooled.points(alike_N),
        "pairs_diverse_gain_mean": pooled.points(diverse_N),
        "pairs_diverse_minus_alike": pooled.points(diverse_N - alike_N),
    }


def _diversity(pooled: Pooled, folds: Sequence[FoldPasses]) -> dict[str, Figure]:
    """Return the diversity of all members in one view, each class of images counting alike."""
    members = [fold.test.members[1] for fold in folds]
    truths = [fold.test.truth_N for fold in folds]
    pairs = list(zip(members, truths, strict=True))
    errors = [error_products_N(own_MNC, truth_N) for own_MNC, truth_N in pairs]
    own_N, crossed_N = (np.concatenate(parts) for parts in zip(*errors, strict=True))
    right_MN = np.concatenate(
        [own_MNC.argmax(axis=2) == truth_N for own_MNC, truth_N in pairs], axis=1
    )
    differ_N = np.concatenate([disagreement_N(own_MNC) for own_MNC in members])
    geometric_N = np.concatenate([ambiguity_N(own_MNC) for own_MNC in members])
    mean_N = np.concatenate([averaging_gain_N(own_MNC, truth_N) for own_MNC, truth_N in pairs])
    weights_N = pooled.weights_N
    return {
        "disagreement": pooled.figure(pooled.mean(differ_N, 0, 1), "%", 100),
        "mistake_correlation": pooled.figure(
            pooled.interval(mistake_correlation(right_MN, weights_N)), ""
        ),
        "error_correlation": pooled.figure(
            pooled.interval(error_correlation(own_N, crossed_N, weights_N)), ""
        ),
        "brier_mean_member": pooled.figure(pooled.mean(own_N, 0, 2), ""),
        "brier_gain_all": pooled.figure(
            pooled.mean((own_N - crossed_N) * (1 - 1 / len(right_MN)), 0, 2), ""
        ),
        "brier_gain_limit": pooled.figure(pooled.mean(own_N - crossed_N, 0, 2), ""),
        "ambiguity": pooled.nats(geometric_N),
        "averaging_gain": pooled.nats(mean_N),
    }


def choices(folds: Sequence[FoldPasses], views: int) -> list[Subset]:
    """Return the members that each fold's validation images choose."""
    return [choose_members(fold.validation, views) for fold in folds]


def choice_figures(folds: Sequence[FoldPasses]) -> dict[str, Figure]:
    """Return what an ensemble chosen by validation gains, and one of all members.

    In one view, beside single networks of the same cost in more views; and in as many views as
    were predicted, beside single networks in as many.
    """
    pooled = Pooled.of(folds)
    found: dict[str, Figure] = {}
    for views in sorted({1, max(folds[0].test.members)}):
        suffix = "" if views == 1 else f"_{views}_views"
        everyone = [tuple(range(len(fold.names))) for fold in folds]
        for name, members in (("chosen", choices(folds, views)), ("all", everyone)):
            # Forward selection begins with the best member, so theirs is that of all members.
            gains = gain_of(folds, members, views)
            found[f"better_member_balanced{suffix}"] = pooled.percent(
                gains.hits_N - gains.over_better_N
            )
            found[f"{name}_balanced{suffix}"] = pooled.percent(gains.hits_N)
            found[f"{name}_minus_better_member_balanced{suffix}"] = pooled.points(
                gains.over_better_N
            )
            if views == 1:
                found[f"same_cost_as_{name}_balanced"] = pooled.percent(
                    gains.hits_N - gains.over_same_cost_N
                )
                found[f"{name}_minus_same_cost_balanced"] = pooled.points(gains.over_same_cost_N)
    return found
