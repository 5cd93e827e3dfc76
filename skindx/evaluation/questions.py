"""What the probabilities answer to "is it urgent", whatever the thresholds of a bundle.

Each question sums the probabilities of some classes: those of the tiers of urgency, and melanoma.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from skindx.evaluation.answers import Answers, Floats
from skindx.evaluation.breakdown import Bools, called_positive, cancer_of, groups_among, share
from skindx.evaluation.figures import LEVEL, SEED, bounds, observed_over_expected, percent
from skindx.evaluation.guarantee_scores import PredictiveValues, UrgentRiskScores, predictive_at
from skindx.metrics import (
    DecisionPoint,
    Interval,
    Statistic,
    confidence_interval,
    decision_curve,
    roc_figures,
)
from skindx.models.conformal import ALL
from skindx.models.urgent_risk import (
    QUESTION_WORDS,
    QUESTIONS,
    UrgentRiskRule,
    classes_of_question,
    urgent_risks,
)

# N = images, C = classes

TARGET_MISSED, TARGET_OVER_TRIAGE = 0.05, 0.40
"""Target of an urgent risk in the report: shares of missed images and of over-triage."""

BAND = (0.05, 0.2)
SPECIFICITIES = (0.6, 0.8, 0.9, 0.95)
THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
_DECISIONS = tuple(number / 100 for number in range(1, 51))
_OVER_TRIAGE = tuple(number / 50 for number in range(51))
_MISSED = tuple(number / 100 for number in range(31))


@dataclass(frozen=True, slots=True)
class BandPoint:
    """A figure of a curve with its pointwise interval."""

    at: float
    figure: Interval


@dataclass(frozen=True, slots=True)
class ThresholdScore:
    """Both errors where a photo is called positive from a fixed risk on."""

    threshold: float
    missed: Interval
    over_triage: Interval


@dataclass(frozen=True, slots=True)
class RiskBand:
    """Images whose risk is in [low, high): what was said of them, and how many were positive."""

    low: float
    high: float
    n: int
    groups: int
    said: float
    """Mean risk of these images."""
    observed: Interval


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What calling photos as the bundle does is worth, with exact intervals over groups."""

    threshold: float | None
    """Positive from this risk on; None: where the likeliest class is one of the question's."""
    sensitivity: Interval
    specificity: Interval
    over_refer_all: Interval | None
    """Net benefit of the bundle's threshold minus that of referring everyone, with the threshold as
    the threshold probability (Vickers and Elkin 2006); None without a threshold."""
    here: PredictiveValues
    """Predictive values at the prevalence of these images."""
    stated: tuple[PredictiveValues, ...]
    """Predictive values at stated prevalences, computed from sensitivity and specificity."""


@dataclass(frozen=True, slots=True)
class QuestionScore:
    """One question: the figures of its risk on labelled images."""

    key: str
    """`urgent_risk`, `soon_risk` or `melanoma`."""
    name: str
    classes: tuple[str, ...]
    """Keys of the classes whose probabilities it sums."""
    n: int
    """Images of these classes."""
    groups: int
    """Lesions, patients or clusters of copies that these are of."""
    others: int
    other_groups: int
    observed_over_expected: Interval
    """Images of these classes over the sum of their risks; 1 is calibrated."""
    band: RiskBand | None
    """Risks from 5 to 20 %, where most decisions are made; None: no image has such a risk."""
    auroc: Interval
    partial_auroc_80: Interval
    """Mean specificity above a sensitivity of 80 %."""
    partial_auroc_88: Interval
    sensitivity_at_specificity: tuple[BandPoint, ...]
    at_threshold: tuple[ThresholdScore, ...]
    roc: tuple[BandPoint, ...]
    """Sensitivity at shares of over-triage, which is 1 - specificity."""
    triage: tuple[BandPoint, ...]
    """The least over-triage at shares of missed images."""
    decision: tuple[DecisionPoint, ...]
    operating: OperatingPoint


def question_scores(answers: Answers, *, draws: int) -> tuple[QuestionScore, ...]:
    """Measure each question that has images of both kinds."""
    return tuple(
        score
        for key, name, of_C in _questions(answers)
        if (score := _score(answers, key, name, of_C, draws)) is not None
    )


def _questions(answers: Answers) -> Iterator[tuple[str, str, Bools]]:
    asked: list[Bools] = []
    for question in QUESTIONS:
        asked.append(classes_of_question(answers.classes, question))
        yield question, QUESTION_WORDS[question][0], asked[-1]
    melanoma_C = np.array([cancer_of(one) == "Melanoma" for one in answers.classes])
    if not any((melanoma_C == of_C).all() for of_C in asked):
        yield "melanoma", "melanoma", melanoma_C


def _score(answers: Answers, key: str, name: str, of_C: Bools, draws: int) -> QuestionScore | None:
    positive_N = of_C[answers.truth_N]
    risk_N = urgent_risks(answers.ensemble_NC, np.flatnonzero(of_C).tolist())
    specific = [1 - specificity for specificity in SPECIFICITIES]
    figures = roc_figures(
        risk_N,
        positive_N,
        answers.groups_N,
        areas=(0.0, 0.8, 0.88),
        over_triage=(*specific, *_OVER_TRIAGE),
        missed=_MISSED,
        draws=draws,
        level=LEVEL,
        seed=SEED,
    )
    if figures is None:
        return None
    auroc, above_80, above_88 = figures.areas
    first, rest = figures.sensitivity[: len(specific)], figures.sensitivity[len(specific) :]
    return QuestionScore(
        key,
        name,
        tuple(one.key for one, of in zip(answers.classes, of_C, strict=True) if of),
        int(positive_N.sum()),
        groups_among(positive_N, answers),
        int((~positive_N).sum()),
        groups_among(~positive_N, answers),
        observed_over_expected(answers, np.flatnonzero(of_C).tolist(), draws=draws),
        _band(answers, positive_N, risk_N),
        auroc,
        above_80,
        above_88,
        tuple(map(BandPoint, SPECIFICITIES, first)),
        tuple(
            ThresholdScore(
                threshold,
                share(positive_N & (risk_N < threshold), positive_N, answers),
                share(~positive_N & (risk_N >= threshold), ~positive_N, answers),
            )
            for threshold in THRESHOLDS
        ),
        tuple(map(BandPoint, _OVER_TRIAGE, rest)),
        tuple(map(BandPoint, _MISSED, figures.over_triage)),
        decision_curve(
            risk_N, positive_N, answers.groups_N, _DECISIONS, draws=draws, level=LEVEL, seed=SEED
        ),
        _operating(answers, key, of_C, draws),
    )


def _band(answers: Answers, positive_N: Bools, risk_N: Floats) -> RiskBand | None:
    low, high = BAND
    inside_N = (risk_N >= low) & (risk_N < high)
    if not inside_N.any():
        return None
    groups, said = groups_among(inside_N, answers), float(risk_N[inside_N].mean())
    return RiskBand(
        low, high, int(inside_N.sum()), groups, said, share(positive_N, inside_N, answers)
    )


def _operating(answers: Answers, key: str, of_C: Bools, draws: int) -> OperatingPoint:
    rule = next((answers.rule(question) for question in QUESTIONS if question == key), None)
    positive_N, called_N = of_C[answers.truth_N], called_positive(answers, of_C, rule)
    sensitivity = share(called_N & positive_N, positive_N, answers)
    specificity = share(~called_N & ~positive_N, ~positive_N, answers)
    return OperatingPoint(
        rule.level(answers.miss_rate).thresholds[ALL] if rule else None,
        sensitivity,
        specificity,
        _over_refer_all(answers, positive_N, called_N, rule, draws),
        PredictiveValues(
            float(positive_N.mean()),
            share(called_N & positive_N, called_N, answers),
            share(~called_N & ~positive_N, ~called_N, answers),
        ),
        predictive_at(sensitivity, specificity),
    )


def _over_refer_all(
    answers: Answers, positive_N: Bools, called_N: Bools, rule: UrgentRiskRule | None, draws: int
) -> Interval | None:
    """Return what each image gains: the odds for one that is rightly spared, -1 for a miss."""
    at = rule.level(answers.miss_rate).thresholds[ALL] if rule else 1.0
    if not 0 < at < 1:
        return None
    odds = at / (1 - at)
    gain_N = np.where(called_N, 0.0, np.where(positive_N, -1.0, odds))
    measure = Statistic.mean(gain_N, -1.0, odds)
    return confidence_interval(measure, answers.groups_N, draws=draws, level=LEVEL, seed=SEED)


def target_text(question: QuestionScore, risk: UrgentRiskScores | None) -> str:
    """Return whether the thresholds and the curve reach the target, in sentences."""
    target = (
        f"Target: at most {percent(TARGET_MISSED)} of {question.name} images missed with at most "
        f"{percent(TARGET_OVER_TRIAGE)} over-triage."
    )
    least = next(point.figure for point in question.triage if point.at == TARGET_MISSED)
    curve = (
        f"The curve of these images has {percent(least)} {bounds(least)} over-triage at "
        f"{percent(TARGET_MISSED)} missed."
    )
    level = risk and next(one for one in risk.levels if one.miss_rate == risk.chosen)
    if not (level and level.misses and level.false_alarms):
        return f"{target} {curve}"
    over = [
        f"its {name} ({percent(figure)} {bounds(figure)})"
        for name, figure, most in (
            ("misses", level.misses.rate, TARGET_MISSED),
            ("over-triage", level.false_alarms.rate, TARGET_OVER_TRIAGE),
        )
        if figure.value > most
    ]
    reached = f"not reached, for {' and '.join(over)}" if over else "reached"
    return f"{target} At the level {percent(level.miss_rate)} it is {reached}. {curve}"


def useful_range(question: QuestionScore) -> str:
    """Return for which threshold probabilities its net benefit beats both defaults, a sentence."""
    better = [point.threshold for point in question.decision if point.gain.low > 0]
    if not better:
        return (
            f"For no threshold probability from {percent(_DECISIONS[0])} to "
            f"{percent(_DECISIONS[-1])} is its net benefit surely above referring all and none."
        )
    between = f"between {percent(better[0])} and {percent(better[-1])}"
    whole = len(better) == round(100 * (better[-1] - better[0])) + 1
    return (
        f"For {'threshold' if whole else 'most threshold'} probabilities {between} its net benefit "
        "is above that of referring all and of referring none, with its whole interval."
    )
