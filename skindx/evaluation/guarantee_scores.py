"""What guarantees did on labelled images: conformal sets, and thresholds of the urgent risk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.evaluation.answers import Answers, Floats
from skindx.evaluation.breakdown import (
    NOTHING,
    UNKNOWN,
    Bools,
    FalseAlarms,
    UrgentMisses,
    groups_among,
    missed_of,
    order,
    raised_of,
    share,
    skin_type_name,
)
from skindx.evaluation.figures import LEVEL, SEED
from skindx.metrics import Interval, Statistic, confidence_interval, predictive_values
from skindx.models.conformal import ALL
from skindx.models.urgent_risk import TIERS, Question, RiskLevel, UrgentRiskRule

# N = images, C = classes


@dataclass(frozen=True, slots=True)
class SetScore:
    """How often the sets of some images hold the true class, and how many classes they hold."""

    name: str
    n: int
    coverage: Interval
    size: float
    """Mean number of classes; NaN without images."""
    mean_size: Interval
    promised: float | None = None
    """The coverage that was promised for just these images; None: nothing was."""
    groups: int = 0
    """Lesions, patients or clusters of copies that the `n` images are of."""


@dataclass(frozen=True, slots=True)
class SetScores:
    """The conformal sets of a predictor; `level` is the coverage that they were made for."""

    level: float
    coverage: Interval
    size: Interval
    single: float
    """Share of images whose set names one class."""
    one_class: Interval
    """Share of images whose set names one class, with its interval."""
    by_group: tuple[SetScore, ...]
    """Images of urgent classes, of the others, and of each skin type that the manifest knows."""
    urgent_missed: UrgentMisses | None
    """Images of urgent classes whose set holds no urgent class; None without such images."""
    false_alarms: FalseAlarms | None
    """Images of other classes whose set holds an urgent one; None where no class is urgent."""
    by_urgency: tuple[SetScore, ...]
    by_class: tuple[SetScore, ...]
    every_class: Interval
    """Share of images whose set names every class, which says nothing."""


def set_scores(answers: Answers, *, draws: int) -> SetScores | None:
    """Measure the sets; None for a predictor without any."""
    if answers.sets_NC is None or answers.level is None:
        return None
    sets_NC, truth_N = answers.sets_NC, answers.truth_N
    every_N = np.ones(len(truth_N), dtype=bool)

    def sized(among_N: Bools) -> Interval:
        if not among_N.any():
            return NOTHING
        size, groups_N = Statistic.set_size(sets_NC[among_N]), answers.groups_N[among_N]
        return confidence_interval(size, groups_N, draws=draws, level=LEVEL, seed=SEED)

    size_N = sets_NC.sum(axis=1)
    held_N = sets_NC[np.arange(len(truth_N)), truth_N]

    def some(name: str, among_N: NDArray[Any], promised: float | None = None) -> SetScore:
        covered, size = share(held_N, among_N, answers), sized(among_N)
        groups = groups_among(among_N, answers)
        return SetScore(name, int(among_N.sum()), covered, size.value, size, promised, groups)

    urgency_N = np.array([skin_class.urgency for skin_class in answers.classes])[truth_N]
    urgent_N, warned_N = (
        urgency_N == "urgent",
        _warned(answers, np.flatnonzero(answers.urgent_C).tolist()),
    )
    return SetScores(
        answers.level,
        share(held_N, every_N, answers),
        sized(every_N),
        float((size_N == 1).mean()),
        share(size_N == 1, every_N, answers),
        tuple(some(*group) for group in _groups(answers, urgent_N)),
        missed_of(urgent_N & ~warned_N, urgent_N, answers),
        raised_of(warned_N & ~urgent_N, ~urgent_N, answers) if answers.urgent_C.any() else None,
        tuple(some(name, urgency_N == name) for name in _present(urgency_N)),
        tuple(some(skin_class.name, truth_N == i) for i, skin_class in enumerate(answers.classes)),
        share(size_N == len(answers.classes), every_N, answers),
    )


def _groups(answers: Answers, urgent_N: Bools) -> Iterator[tuple[str, Bools, float | None]]:
    """Yield the groups that thresholds may be fitted for: name, images, promised coverage."""
    # A coverage is promised for urgent and other classes only if they have own thresholds.
    apart = answers.urgent_level is not None
    if urgent_N.any():
        yield "urgent classes", urgent_N, answers.urgent_level
        yield "other classes", ~urgent_N, answers.level if apart else None
    types_N = np.array([skin_type_name(skin_type) for skin_type in answers.skin_types])
    for name in order(types_N.tolist()):
        if name != UNKNOWN:
            fitted = name in {skin_type_name(skin_type) for skin_type in answers.fitted_types}
            yield f"skin type {name}", types_N == name, answers.level if fitted else None


def _present(urgency_N: NDArray[np.str_]) -> Sequence[str]:
    return [name for name in ("urgent", "soon", "routine", "unknown") if name in urgency_N]


# N = images, C = classes

_CURVE = 200
"""Most points of the curve; more are not seen."""


@dataclass(frozen=True, slots=True)
class TypeScore:
    """One skin type; its own threshold applies where it has one."""

    name: str
    misses: UrgentMisses | None
    false_alarms: FalseAlarms | None


PREVALENCES = (0.01, 0.05, 0.2)


@dataclass(frozen=True, slots=True)
class PredictiveValues:
    """What a call means where a share of `prevalence` has such a condition."""

    prevalence: float
    ppv: Interval
    npv: Interval


@dataclass(frozen=True, slots=True)
class LevelScore:
    """One level: its promise, and what it did on these images."""

    miss_rate: float
    confidence: float
    """Confidence that the threshold keeps to the miss rate."""
    bound: float
    """Upper bound of its miss rate with 95 % confidence."""
    threshold: float
    misses: UrgentMisses | None
    """Images of urgent classes below the threshold; None without such images."""
    unwarned: int
    """Number of missed images whose set holds no urgent class either."""
    false_alarms: FalseAlarms | None
    """Images of other classes at or above the threshold; None without such images."""
    by_skin_type: tuple[TypeScore, ...]
    predictive: tuple[PredictiveValues, ...] = ()
    """Predictive values at prevalences of 1, 5 and 20 %; empty without images of both kinds."""


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
    rates: dict[str, Interval]
    """Shares of the images by next step, with intervals."""


@dataclass(frozen=True, slots=True)
class UrgentRiskScores:
    """The urgent risk of a predictor on labelled images, or that of urgent and soon classes."""

    default: float
    """The miss rate that the next step goes by unless the operator chooses another."""
    chosen: float
    """The miss rate that it went by here: the headline and `steps` are at this level."""
    lesions: int
    """Calibration lesions behind the thresholds."""
    levels: tuple[LevelScore, ...]
    curve: tuple[CurvePoint, ...]
    """Points by ascending threshold; empty unless there are images of both kinds."""
    steps: tuple[StepCount, ...]


def urgent_scores(answers: Answers, question: Question = "urgent_risk") -> UrgentRiskScores | None:
    """Measure the risk of a question; None for a predictor without a threshold of it."""
    rule = answers.rule(question)
    if rule is None:
        return None
    urgent_N = np.isin(answers.truth_N, rule.urgent_columns)
    risk_N = rule.risks(answers.ensemble_NC)
    return UrgentRiskScores(
        rule.default,
        rule.level(answers.miss_rate).miss_rate,
        rule.lesions[ALL],
        tuple(_level(rule, level, answers, risk_N, urgent_N) for level in rule.levels),
        tuple(_curve(risk_N, urgent_N)),
        tuple(_steps(answers, urgent_N, " and ".join(TIERS[question]))),
    )


def _level(
    rule: UrgentRiskRule, level: RiskLevel, answers: Answers, risk_N: Floats, urgent_N: Bools
) -> LevelScore:
    sent_N = risk_N >= rule.thresholds(level, answers.skin_types)
    missed_N, raised_N = urgent_N & ~sent_N, ~urgent_N & sent_N
    promise = rule.promise(level)
    types_N = np.array([skin_type_name(skin_type) for skin_type in answers.skin_types])
    misses = missed_of(missed_N, urgent_N, answers)
    alarms = raised_of(raised_N, ~urgent_N, answers)
    of_type = {name: types_N == name for name in order(types_N.tolist()) if name != UNKNOWN}
    return LevelScore(
        level.miss_rate,
        promise.confidence,
        promise.bound,
        level.thresholds[ALL],
        misses,
        int((missed_N & ~_warned(answers, rule.urgent_columns)).sum()),
        alarms,
        tuple(
            TypeScore(
                name,
                missed_of(missed_N & of_N, urgent_N & of_N, answers),
                raised_of(raised_N & of_N, ~urgent_N & of_N, answers),
            )
            for name, of_N in of_type.items()
        ),
        predictive_at(
            share(sent_N & urgent_N, urgent_N, answers),
            share(~sent_N & ~urgent_N, ~urgent_N, answers),
        )
        if misses and alarms
        else (),
    )


def predictive_at(sensitivity: Interval, specificity: Interval) -> tuple[PredictiveValues, ...]:
    """Return the predictive values at the stated prevalences: see `predictive_values`."""
    return tuple(
        PredictiveValues(prevalence, *predictive_values(sensitivity, specificity, prevalence))
        for prevalence in PREVALENCES
    )


def _warned(answers: Answers, columns: Sequence[int]) -> Bools:
    """Return whether an image's set names one of these classes: its step is then soon at least."""
    if answers.sets_NC is None:
        return np.zeros(len(answers), dtype=bool)
    return np.asarray(answers.sets_NC[:, list(columns)].any(axis=1))


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


_STEPS = ("urgent", "soon", "unknown", "routine")


def _steps(answers: Answers, urgent_N: Bools, tiers: str) -> Iterator[StepCount]:
    if answers.steps is None:
        return
    steps_N = np.array(answers.steps)
    for name, of_N in ((f"{tiers} classes", urgent_N), ("other classes", ~urgent_N)):
        rates = {step: share(steps_N == step, of_N, answers) for step in _STEPS}
        counts = {step: int((steps_N[of_N] == step).sum()) for step in _STEPS}
        yield StepCount(name, int(of_N.sum()), **counts, rates=rates)
