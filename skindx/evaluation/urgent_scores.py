"""Missed and unnecessary referrals by the urgent risk, at each level and on the curve."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.evaluation.answers import Answers, Floats
from skindx.evaluation.breakdown import UNKNOWN, order, skin_type_name
from skindx.evaluation.misses import FalseAlarms, UrgentMisses, share
from skindx.models.conformal import ALL
from skindx.models.urgent_risk import RiskLevel, UrgentRisk

# N = images, C = classes

Bools = NDArray[np.bool_]

_CURVE = 200
"""Most points of the curve; more are not seen."""


@dataclass(frozen=True, slots=True)
class TypeScore:
    """One skin type; its own threshold applies where it has one."""

    name: str
    misses: UrgentMisses | None
    false_alarms: FalseAlarms | None


@dataclass(frozen=True, slots=True)
class LevelScore:
    """One level: its promise, and what it did on these images."""

    miss_rate: float
    confidence: float
    """How sure it is that the threshold keeps to the miss rate."""
    bound: float
    """Its miss rate is at most this with 95 % confidence."""
    threshold: float
    misses: UrgentMisses | None
    """Images of urgent classes below the threshold; None without such images."""
    unwarned: int
    """Of the missed, those whose set holds no urgent class either."""
    false_alarms: FalseAlarms | None
    """Images of other classes at or above the threshold; None without such images."""
    by_skin_type: tuple[TypeScore, ...]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Urgent from `threshold` on: the share of urgent images missed, of others sent on."""

    threshold: float
    missed: float
    sent_on: float


@dataclass(frozen=True, slots=True)
class StepCount:
    """How many images got which next step, at the chosen level."""

    name: str
    n: int
    urgent: int
    soon: int
    unknown: int
    routine: int


@dataclass(frozen=True, slots=True)
class UrgentRiskScores:
    """The urgent risk of a predictor on labelled images."""

    default: float
    """The miss rate that the next step goes by unless the operator chooses another."""
    chosen: float
    """The miss rate that it went by here: the headline and `steps` are at this level."""
    lesions: int
    """Calibration lesions behind the thresholds."""
    levels: tuple[LevelScore, ...]
    curve: tuple[CurvePoint, ...]
    """By ascending threshold; empty without images of either kind."""
    steps: tuple[StepCount, ...]


def urgent_scores(answers: Answers) -> UrgentRiskScores | None:
    """Measure the urgent risk; None for a predictor without a threshold."""
    rule = answers.urgent_risk
    if rule is None:
        return None
    urgent_N = np.array([skin_class.urgency == "urgent" for skin_class in answers.classes])[
        answers.truth_N
    ]
    risk_N = rule.risks(answers.ensemble_NC)
    return UrgentRiskScores(
        rule.default,
        rule.level(answers.miss_rate).miss_rate,
        rule.lesions[ALL],
        tuple(_level(rule, level, answers, risk_N, urgent_N) for level in rule.levels),
        tuple(_curve(risk_N, urgent_N)),
        tuple(_steps(answers, urgent_N)),
    )


def missed_of(missed_N: Bools, urgent_N: Bools, answers: Answers) -> UrgentMisses | None:
    """Count missed images of urgent classes; None when there is none to miss."""
    n = int(urgent_N.sum())
    return UrgentMisses(n, int(missed_N.sum()), share(missed_N, urgent_N, answers)) if n else None


def raised_of(raised_N: Bools, other_N: Bools, answers: Answers) -> FalseAlarms | None:
    """Count images of other classes that are sent on; None when there is no such image."""
    n = int(other_N.sum())
    return FalseAlarms(n, int(raised_N.sum()), share(raised_N, other_N, answers)) if n else None


def _level(
    rule: UrgentRisk, level: RiskLevel, answers: Answers, risk_N: Floats, urgent_N: Bools
) -> LevelScore:
    sent_N = risk_N >= rule.thresholds(level, answers.skin_types)
    missed_N, raised_N = urgent_N & ~sent_N, ~urgent_N & sent_N
    promise = rule.promise(level)
    types_N = np.array([skin_type_name(skin_type) for skin_type in answers.skin_types])
    of_type = {name: types_N == name for name in order(types_N.tolist()) if name != UNKNOWN}
    return LevelScore(
        level.miss_rate,
        promise.confidence,
        promise.bound,
        level.thresholds[ALL],
        missed_of(missed_N, urgent_N, answers),
        int((missed_N & ~_warned(answers)).sum()),
        raised_of(raised_N, ~urgent_N, answers),
        tuple(
            TypeScore(
                name,
                missed_of(missed_N & of_N, urgent_N & of_N, answers),
                raised_of(raised_N & of_N, ~urgent_N & of_N, answers),
            )
            for name, of_N in of_type.items()
        ),
    )


def _warned(answers: Answers) -> Bools:
    """Return whether an image's set names an urgent class, which makes its next step soon."""
    if answers.sets_NC is None:
        return np.zeros(len(answers), dtype=bool)
    urgent_C = np.array([skin_class.urgency == "urgent" for skin_class in answers.classes])
    return np.asarray(answers.sets_NC[:, urgent_C].any(axis=1))


def _curve(risk_N: Floats, urgent_N: Bools) -> Iterator[CurvePoint]:
    if not urgent_N.any() or urgent_N.all():
        return
    urgent, other = np.sort(risk_N[urgent_N]), np.sort(risk_N[~urgent_N])
    thresholds = np.unique(urgent)
    if len(thresholds) > _CURVE:
        thresholds = thresholds[np.linspace(0, len(thresholds) - 1, _CURVE).round().astype(int)]
    for threshold in thresholds.tolist():
        below, under = np.searchsorted(urgent, threshold), np.searchsorted(other, threshold)
        yield CurvePoint(threshold, float(below / len(urgent)), float(1 - under / len(other)))


def _steps(answers: Answers, urgent_N: Bools) -> Iterator[StepCount]:
    if answers.steps is None:
        return
    steps_N = np.array(answers.steps)
    for name, of_N in (("urgent classes", urgent_N), ("other classes", ~urgent_N)):
        counts = (
            int((steps_N[of_N] == step).sum()) for step in ("urgent", "soon", "unknown", "routine")
        )
        yield StepCount(name, int(of_N.sum()), *counts)
