"""The headline figures: how they are made, how they are read, and how they are written.

As text (78.3 %, 0.041, +2.1 points, with their intervals) and as plain values.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from skindx.core.text import cell
from skindx.evaluation.answers import Answers, Floats, Ints, Strings
from skindx.metrics import (
    ClasswiseGaps,
    Interval,
    Measure,
    Ranked,
    Statistic,
    balanced_rule,
    confidence_interval,
)

if TYPE_CHECKING:
    from rich.table import Table

LEVEL = 0.95
SEED = 0

# N = images, C = classes


@dataclass(frozen=True, slots=True)
class HeadlineFigure:
    """One headline figure; `{k}` in the title stands for 5, or for fewer classes."""

    title: str
    unit: Literal["percent", "decimal"]
    better: Literal["high", "low"]
    meaning: str
    make: Callable[[Floats, Ints], Measure]
    by_balanced_rule: bool = False
    """Whether a class is named by p_k / pi_k, for which the mix pi has to be known."""

    def measure(
        self, probabilities_NC: Floats, truth_N: Ints, mix_C: Floats | None
    ) -> Measure | None:
        """Return the measure; None for the balanced rule without a mix."""
        if not self.by_balanced_rule:
            return self.make(probabilities_NC, truth_N)
        if mix_C is None:
            return None
        return self.make(balanced_rule(probabilities_NC, mix_C), truth_N)


def _top(most: int) -> Callable[[Floats, Ints], Measure]:
    return lambda p_NC, truth_N: Statistic.top_k(p_NC, truth_N, min(most, p_NC.shape[1]))


FIGURES = {
    "top1": HeadlineFigure(
        "top-1", "percent", "high", "Images whose likeliest class is the true one.", _top(1)
    ),
    "top3": HeadlineFigure(
        "top-{3}", "percent", "high", "Images whose true class is among the three likeliest.",
        _top(3),
    ),
    "top_k": HeadlineFigure(
        "top-{k}", "percent", "high", "The same, among the five likeliest, or among all if fewer.",
        _top(5),
    ),
    "balanced_accuracy": HeadlineFigure(
        "balanced accuracy", "percent", "high",
        "Share found of each class, averaged: rare classes count as much as common ones.",
        Statistic.balanced_accuracy,
    ),
    "balanced_rule_top1": HeadlineFigure(
        "top-1 by the balanced rule", "percent", "high",
        "Images whose true class has the greatest probability divided by its share in the mix that "
        "the probabilities hold for. This rule names rare classes more often.",
        _top(1), by_balanced_rule=True,
    ),
    "balanced_rule_accuracy": HeadlineFigure(
        "balanced accuracy by the balanced rule", "percent", "high",
        "Share found of each class, averaged, where that rule names the class.",
        Statistic.balanced_accuracy, by_balanced_rule=True,
    ),
    "macro_f1": HeadlineFigure(
        "macro-F1", "percent", "high",
        "Found and rightly named at once, averaged over classes.", Statistic.macro_f1,
    ),
    "auroc": HeadlineFigure(
        "AUROC", "decimal", "high",
        "Chance that an image of a class is held likelier to be of it than one of another class; "
        "0.5 is guessing. One against the rest, averaged over classes.", Ranked.auroc,
    ),
    "calibration_error": HeadlineFigure(
        "calibration error", "decimal", "low",
        "Mean gap between confidence and accuracy (ECE); 0 is best.", Statistic.calibration_error,
    ),
    "classwise_calibration_error": HeadlineFigure(
        "classwise calibration error", "decimal", "low",
        "Mean over classes of the gap between the probability of a class and its share (Kull et "
        "al. 2019); 0 is best.", ClasswiseGaps.measure,
    ),
    "log_loss": HeadlineFigure(
        "log loss", "decimal", "low",
        "Mean of minus the logarithm of the true class's probability; 0 is best.",
        Statistic.log_loss,
    ),
    "brier": HeadlineFigure(
        "Brier score", "decimal", "low",
        "Squared distance of the probabilities to the truth; 0 is best, 2 worst.", Statistic.brier,
    ),
    "selective_risk_area": HeadlineFigure(
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
    classwise_calibration_error: Interval
    log_loss: Interval
    brier: Interval
    selective_risk_area: Interval
    balanced_rule_top1: Interval | None = None
    """Top-1 by the balanced rule; None where the bundle does not state its mix, as older ones."""
    balanced_rule_accuracy: Interval | None = None
    """Balanced accuracy by the balanced rule; None likewise."""

    @property
    def figures(self) -> dict[str, Interval]:
        """Return those that are known, in the order of FIGURES."""
        return {key: figure for key in FIGURES if (figure := getattr(self, key)) is not None}


def measure_scores(
    name: str,
    probabilities_NC: Floats,
    truth_N: Ints,
    groups_N: Strings,
    *,
    mix_C: Floats | None = None,
    draws: int,
) -> Scores:
    """Measure a predictor; intervals of 95 % resample groups, the same draws for every figure.

    `mix_C` is the share of each class that the probabilities hold for; without it there are no
    figures of the balanced rule.
    """
    measures = {
        key: figure.measure(probabilities_NC, truth_N, mix_C) for key, figure in FIGURES.items()
    }
    return Scores(
        name,
        **{
            key: confidence_interval(measure, groups_N, draws=draws, level=LEVEL, seed=SEED)
            for key, measure in measures.items()
            if measure is not None
        },
    )


def observed_over_expected(answers: Answers, classes: Sequence[int], *, draws: int) -> Interval:
    """Return images of these classes over the sum of the ensemble's probabilities of them."""
    measure = Statistic.observed_over_expected(answers.ensemble_NC, answers.truth_N, classes)
    return confidence_interval(measure, answers.groups_N, draws=draws, level=LEVEL, seed=SEED)


def percent(figure: Interval | float) -> str:
    """Write a share as 78.3 %."""
    value = figure.value if isinstance(figure, Interval) else figure
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def decimal(figure: Interval | float) -> str:
    """Write a figure as 0.041."""
    value = figure.value if isinstance(figure, Interval) else figure
    return "–" if math.isnan(value) else f"{value:.3f}"


def points(difference: float) -> str:
    """Write a difference of shares in percentage points, with its sign: +2.1, −0.4."""
    return _signed(100 * difference, 1)


def change(difference: float) -> str:
    """Write a difference of decimals with its sign: +0.021, −0.004."""
    return _signed(difference, 3)


def bounds(figure: Interval | None, unit: str = "percent") -> str:
    """Write an interval as [74.6, 81.9], in percent, points, change or as a decimal."""
    if figure is None or math.isnan(figure.low):
        return "[–]"
    low, high = figure.low, figure.high
    if unit == "percent":
        digits = 2 if f"{100 * low:.1f}" == f"{100 * high:.1f}" else 1
        return f"[{100 * low:.{digits}f}, {100 * high:.{digits}f}]"
    write = {"points": points, "decimal": decimal, "change": change}[unit]
    return f"[{write(low)}, {write(high)}]"


def shown(figure: Interval | float, key: str) -> str:
    """Write a headline figure in its unit."""
    return percent(figure) if FIGURES[key].unit == "percent" else decimal(figure)


def shown_difference(figure: Interval, key: str) -> str:
    if FIGURES[key].unit == "percent":
        return f"{points(figure.value)} {bounds(figure, 'points')}"
    return f"{change(figure.value)} {bounds(figure, 'change')}"


def title(key: str, k: int) -> str:
    """Return the name of a headline figure, with its k: five, or all classes if fewer."""
    return FIGURES[key].title.replace("{k}", str(k)).replace("{3}", str(min(3, k)))


def figures_of(k: int) -> list[str]:
    """Return the keys of the headline figures to print: among three classes top-k is top-3."""
    return [key for key in FIGURES if key != "top_k" or k > 3]


def p_value(p: float) -> str:
    """Write a p-value for a column headed p: 0.031, very small ones as < 0.001."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def p_equation(p: float) -> str:
    """Write a p-value inside a sentence: p = 0.031, very small ones as p < 0.001."""
    return f"p {p_value(p)}" if p < 0.001 else f"p = {p_value(p)}"


def first_upper(text: str) -> str:
    """Make the first letter a capital and leave the others."""
    return text[:1].upper() + text[1:]


def plain(value: Any) -> Any:
    """Return a result for JSON: dataclasses as dicts, tuples as lists, NaN and infinity as None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _signed(value: float, digits: int) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def figures_table(
    heading: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    emphasised: int = -1,
) -> "Table":
    """Return a table for a terminal: the first column names things, all others are figures.

    The row of the number `emphasised` is bold. Cells are plain text.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=heading or None,
        caption=cell(caption) or None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for number, name in enumerate(columns):
        # Long texts take a second line: an interval that is cut off is none.
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for number, row in enumerate(rows):
        table.add_row(*map(cell, row), style="bold" if number == emphasised else "")
    return table
