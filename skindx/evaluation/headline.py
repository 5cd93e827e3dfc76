"""The headline figures: which there are, how they are made, and how they are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from skindx.evaluation.answers import Floats, Ints, Strings
from skindx.metrics import Interval, Measure, Ranked, Statistic, confidence_interval

LEVEL = 0.95
SEED = 0

# N = images, C = classes


@dataclass(frozen=True, slots=True)
class Figure:
    """One headline figure; `{k}` in the title stands for 5, or for fewer classes."""

    title: str
    unit: Literal["percent", "decimal"]
    better: Literal["high", "low"]
    meaning: str
    make: Callable[[Floats, Ints], Measure]


def _top(most: int) -> Callable[[Floats, Ints], Measure]:
    return lambda p_NC, truth_N: Statistic.top_k(p_NC, truth_N, min(most, p_NC.shape[1]))


FIGURES = {
    "top1": Figure(
        "top-1", "percent", "high", "Images whose likeliest class is the true one.", _top(1)
    ),
    "top3": Figure(
        "top-{3}", "percent", "high", "Images whose true class is among the three likeliest.",
        _top(3),
    ),
    "top_k": Figure(
        "top-{k}", "percent", "high", "The same, among the five likeliest, or among all if fewer.",
        _top(5),
    ),
    "balanced_accuracy": Figure(
        "balanced accuracy", "percent", "high",
        "Share found of each class, averaged: rare classes count as much as common ones.",
        Statistic.balanced_accuracy,
    ),
    "macro_f1": Figure(
        "macro-F1", "percent", "high",
        "Found and rightly named at once, averaged over classes.", Statistic.macro_f1,
    ),
    "auroc": Figure(
        "AUROC", "decimal", "high",
        "Chance that an image of a class is held likelier to be of it than one of another class; "
        "0.5 is guessing. One against the rest, averaged over classes.", Ranked.auroc,
    ),
    "calibration_error": Figure(
        "calibration error", "decimal", "low",
        "Mean gap between confidence and accuracy (ECE); 0 is best.", Statistic.calibration_error,
    ),
    "brier": Figure(
        "Brier score", "decimal", "low",
        "Squared distance of the probabilities to the truth; 0 is best, 2 worst.", Statistic.brier,
    ),
    "selective_risk_area": Figure(
        "AURC", "decimal", "low",
        "Mean error when only the more confident images are answered; 0 is best.",
        Ranked.selective_risk_area,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scores:
    """The headline figures of one predictor; the fields are the keys of FIGURES."""

    name: str
    top1: Interval
    top3: Interval
    top_k: Interval
    balanced_accuracy: Interval
    macro_f1: Interval
    auroc: Interval
    calibration_error: Interval
    brier: Interval
    selective_risk_area: Interval

    @property
    def figures(self) -> dict[str, Interval]:
        """The figures by their keys."""
        return {key: getattr(self, key) for key in FIGURES}


def measure_scores(
    name: str, probabilities_NC: Floats, truth_N: Ints, groups_N: Strings, *, draws: int
) -> Scores:
    """Measure a predictor; intervals of 95 % resample groups, the same draws for every figure."""

    def interval(figure: Figure) -> Interval:
        measure = figure.make(probabilities_NC, truth_N)
        return confidence_interval(measure, groups_N, draws=draws, level=LEVEL, seed=SEED)

    return Scores(name, **{key: interval(figure) for key, figure in FIGURES.items()})
