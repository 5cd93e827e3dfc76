"""What a score is worth at each threshold: ROC curve and areas, predictive values, net benefit.

A photo is called positive from a threshold on. Missed is the share of positive images below it,
over-triage the share of the others at or above it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike

from skindx.metrics.bootstrap import bootstrap_intervals
from skindx.metrics.share_intervals import Bools, Floats, Interval

# N = images, G = groups, D = bootstrap draws, E = distinct scores, T = thresholds, K = figures

_ROUNDING = 1e-12


Curve = Callable[[Floats], tuple[Floats, Floats]]
"""Turns the weight of each image into over-triage and sensitivity, E + 1 each, from (0, 0) on."""


def _curve_of(scores_N: Floats, positive_N: Bools) -> Curve:
    order_N = np.argsort(-scores_N, kind="stable")
    falling_N, positive_N = scores_N[order_N], positive_N[order_N]
    # Equal scores reach a threshold together, so only the last of them is a point.
    last_E = np.append(np.flatnonzero(np.diff(falling_N)), len(falling_N) - 1)

    def curve(weights_N: Floats) -> tuple[Floats, Floats]:
        weights_N = weights_N[order_N]
        shares = []
        for kind_N in (~positive_N, positive_N):
            rising_E = np.cumsum(weights_N * kind_N)[last_E]
            with np.errstate(invalid="ignore"):  # a draw may lack a kind: NaN
                shares.append(np.append(0.0, rising_E / rising_E[-1]))
        return shares[0], shares[1]

    return curve


def _area(over_E: Floats, sensitivity_E: Floats, least: float) -> float:
    if math.isnan(over_E[-1]) or math.isnan(sensitivity_E[-1]):
        return float("nan")
    first = int(np.searchsorted(sensitivity_E, least, side="right"))
    specificity_E = 1 - over_E
    before = np.interp(least, sensitivity_E[first - 1 : first + 1], specificity_E[first - 1 :][:2])
    height_E = np.append(before, specificity_E[first:])
    width_E = np.diff(np.append(least, sensitivity_E[first:]))
    return float((width_E * (height_E[1:] + height_E[:-1]) / 2).sum() / (1 - least))


@dataclass(frozen=True, slots=True)
class RocFigures:
    """Figures of one ROC curve, each with its interval over groups."""

    areas: tuple[Interval, ...]
    """Partial areas above each of the given least sensitivities."""
    sensitivity: tuple[Interval, ...]
    """Greatest sensitivity at each of the given shares of over-triage, or less."""
    over_triage: tuple[Interval, ...]
    """Least over-triage at each of the given shares of missed images, or less."""


def roc_figures(
    scores_N: Floats,
    positive_N: Bools,
    groups_N: ArrayLike,
    *,
    areas: Sequence[float] = (0.0, 0.8, 0.88),
    over_triage: Sequence[float] = (),
    missed: Sequence[float] = (),
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> RocFigures | None:
    """Return figures of the curve from one pass of draws; bands are pointwise.

    None without images of both kinds.
    """
    if positive_N.all() or not positive_N.any():
        return None
    curve = _curve_of(scores_N, positive_N)
    most_over = np.asarray(over_triage) + _ROUNDING
    least_found = 1 - np.asarray(missed) - _ROUNDING

    def figures(weights_N: Floats) -> Floats:
        over_E, found_E = curve(weights_N)
        if math.isnan(over_E[-1]) or math.isnan(found_E[-1]):
            return np.full(len(areas) + len(over_triage) + len(missed), np.nan)
        return np.concatenate(
            [
                [_area(over_E, found_E, least) for least in areas],
                found_E[np.searchsorted(over_E, most_over, side="right") - 1],
                over_E[np.searchsorted(found_E, least_found)],
            ]
        )

    _, index_N = np.unique(groups_N, return_inverse=True)
    intervals = bootstrap_intervals(
        lambda weights_DG: np.stack([figures(weights_G[index_N]) for weights_G in weights_DG]),
        figures(np.ones(len(scores_N))),
        groups_N,
        strata_N=positive_N.astype(np.intp),
        draws=draws,
        level=level,
        seed=seed,
    )
    parts = iter(intervals)
    return RocFigures(*(tuple(islice(parts, len(x))) for x in (areas, over_triage, missed)))


def predictive_values(
    sensitivity: Interval, specificity: Interval, prevalence: float
) -> tuple[Interval, Interval]:
    """Return the positive and the negative predictive value at a prevalence, by Bayes' rule.

    A prior shift leaves sensitivity and specificity as they are. Their intervals are of different
    images, so they are joined by the square-and-add rule (Zou and Donner 2008), never beyond what
    both ends together give. NaN where nobody is called positive, or everybody.
    """

    def join(value: Callable[[float, float], float]) -> Interval:
        middle = value(sensitivity.value, specificity.value)
        ends = []
        for end in ("low", "high"):
            one, other = getattr(sensitivity, end), getattr(specificity, end)
            both = value(one, other)
            reach = math.hypot(
                middle - value(one, specificity.value), middle - value(sensitivity.value, other)
            )
            reach = min(reach, abs(middle - both))
            ends.append(middle - reach if end == "low" else middle + reach)
        return Interval(middle, *ends)

    def positive(sensitivity: float, specificity: float) -> float:
        true, false = prevalence * sensitivity, (1 - prevalence) * (1 - specificity)
        return true / (true + false) if true + false else float("nan")

    def negative(sensitivity: float, specificity: float) -> float:
        true, false = (1 - prevalence) * specificity, prevalence * (1 - sensitivity)
        return true / (true + false) if true + false else float("nan")

    return join(positive), join(negative)


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """Net benefit of referring from one probability on; a unit is a true positive an image."""

    threshold: float
    net_benefit: Interval
    refer_all: Interval
    gain: Interval
    """Net benefit minus that of the better of referring all and referring none, paired."""


def net_benefit(scores_N: Floats, positive_N: Bools, thresholds_T: Floats) -> Floats:
    """Return TP/n - FP/n * t / (1 - t) at each threshold probability t, T.

    Vickers and Elkin 2006, "Decision curve analysis": t says how many false positives one true
    positive is worth. Referring none has 0.
    """
    totals_F = _decision_features(scores_N, positive_N, thresholds_T).sum(axis=0)
    return _net_benefit(totals_F[None], thresholds_T)[0, : len(thresholds_T)]


def _decision_features(scores_N: Floats, positive_N: Bools, thresholds_T: Floats) -> Floats:
    called_NT = scores_N[:, None] >= thresholds_T
    positive_N1 = positive_N[:, None]
    ones_N1 = np.ones((len(scores_N), 1))
    return np.hstack([called_NT & positive_N1, called_NT & ~positive_N1, positive_N1, ones_N1])


def _net_benefit(totals_DF: Floats, thresholds_T: Floats) -> Floats:
    """Return net benefit, that of referring all, and the gain over both defaults, side by side."""
    shares_DF, count = totals_DF[:, :-1] / totals_DF[:, -1:], len(thresholds_T)
    odds_T, prevalence_D1 = thresholds_T / (1 - thresholds_T), shares_DF[:, -1:]
    benefit_DT = shares_DF[:, :count] - shares_DF[:, count : 2 * count] * odds_T
    all_DT = prevalence_D1 - (1 - prevalence_D1) * odds_T
    return np.hstack([benefit_DT, all_DT, benefit_DT - np.maximum(all_DT, 0)])


def decision_curve(
    scores_N: Floats,
    positive_N: Bools,
    groups_N: ArrayLike,
    thresholds: Sequence[float],
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[DecisionPoint, ...]:
    """Return the decision curve with pointwise intervals over groups; thresholds in 0..1."""
    thresholds_T = np.asarray(thresholds, dtype=float)
    features_NF = _decision_features(scores_N, positive_N, thresholds_T)
    _, index_N = np.unique(groups_N, return_inverse=True)
    totals_GF = np.zeros((int(index_N.max()) + 1, features_NF.shape[1]))
    np.add.at(totals_GF, index_N, features_NF)
    worst_T = -thresholds_T / (1 - thresholds_T)
    intervals = bootstrap_intervals(
        lambda weights_DG: _net_benefit(weights_DG @ totals_GF, thresholds_T),
        _net_benefit(features_NF.sum(axis=0)[None], thresholds_T)[0],
        groups_N,
        low=np.concatenate([worst_T, worst_T, worst_T - 1]),
        draws=draws,
        level=level,
        seed=seed,
    )
    parts = (intervals[start :: len(thresholds_T)] for start in range(len(thresholds_T)))
    return tuple(
        DecisionPoint(threshold, *part) for threshold, part in zip(thresholds, parts, strict=True)
    )
