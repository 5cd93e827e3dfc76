"""The headline figures: which there are, how they are made, and how they are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from skindx.metrics import Interval, Measure, Ranked, Statistic, bootstrap_interval
from skindx.studies.answers import Floats, Ints, Strings

LEVEL = 0.95
SEED = 0

# N = pictures, C = classes


@dataclass(frozen=True, slots=True)
class Figure:
    """One headline figure; `{k}` in the title stands for its k."""

    title: str
    unit: Literal["percent", "decimal"]
    better: Literal["high", "low"]
    make: Callable[[Floats, Ints], Measure]


def _top(most: int) -> Callable[[Floats, Ints], Measure]:
    return lambda p_NC, truth_N: Statistic.top_k(p_NC, truth_N, min(most, p_NC.shape[1]))


FIGURES: dict[str, Figure] = {
    "top1": Figure("top-1", "percent", "high", _top(1)),
    "top3": Figure("top-3", "percent", "high", _top(3)),
    "top_k": Figure("top-{k}", "percent", "high", _top(5)),
    "balanced_accuracy": Figure(
        "balanced accuracy", "percent", "high", Statistic.balanced_accuracy
    ),
    "macro_f1": Figure("macro-F1", "percent", "high", Statistic.macro_f1),
    "auroc": Figure("AUROC", "decimal", "high", Ranked.auroc),
    "calibration_error": Figure("calibration error", "decimal", "low", Statistic.calibration_error),
    "brier": Figure("Brier score", "decimal", "low", Statistic.brier),
    "selective_risk_area": Figure("AURC", "decimal", "low", Ranked.selective_risk_area),
}


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
        return bootstrap_interval(measure, groups_N, draws=draws, level=LEVEL, seed=SEED)

    return Scores(name, **{key: interval(figure) for key, figure in FIGURES.items()})
