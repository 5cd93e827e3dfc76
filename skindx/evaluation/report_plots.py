"""The plots of the report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from skindx.core.svg_plots import BLUE, INK, LINE, ON_BLUE, SOFT, Plot, new_plot
from skindx.evaluation.figures import bounds, decimal, first_upper, percent
from skindx.evaluation.guarantee_scores import UrgentRiskScores
from skindx.evaluation.questions import BandPoint, QuestionScore
from skindx.evaluation.score import ClassScore, Evaluation
from skindx.metrics import RiskPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def percent_axis(
    axes: "Axes", which: Literal["x", "y"], label: str, most: float = 1.0, step: float = 0.25
) -> None:
    """Give the "x" or "y" axis a scale from 0 to `most`, in percent, with a grid."""
    ticks = [most * step * number for number in range(round(1 / step) + 1)]
    axes.set(**{f"{which}lim": (0, most), f"{which}ticks": ticks})
    axes.set(**{f"{which}ticklabels": [f"{100 * tick:g}" for tick in ticks]})
    axes.grid(axis=which, color=LINE, linewidth=1)
    getattr(axes, f"set_{which}label")(label, color=SOFT)


COUNTS_UP_TO = 25  # classes; beyond it a cell is too small to hold a number
SIZE = 300.0  # pixels of a square plot
_WIDTH = 640.0  # pixels that the cells of a confusion matrix may take
_LONGEST = 30  # letters of a label


@dataclass(frozen=True, slots=True)
class ConfusionCell:
    """A pair of true and predicted class that occurs; `share` is of the true class's images."""

    row: int
    column: int
    share: float
    count: int
    truth: str
    predicted: str


def confusion_cells(evaluation: Evaluation) -> list[ConfusionCell]:
    """Return the cells of the confusion matrix that are not empty; rows are true classes."""
    names = [score.name for score in evaluation.classes]
    return [
        ConfusionCell(
            row, column, count / evaluation.classes[row].n, count, names[row], names[column]
        )
        for row, counts in enumerate(evaluation.confusion)
        for column, count in enumerate(counts)
        if count
    ]


def has_counts(evaluation: Evaluation) -> bool:
    """Whether the cells of the confusion matrix show their counts."""
    return len(evaluation.classes) <= COUNTS_UP_TO


def confusion_plot(evaluation: Evaluation) -> Plot:
    """Draw the confusion matrix; the shade is the share of the row."""
    from matplotlib.patches import Rectangle

    n, counts = len(evaluation.classes), has_counts(evaluation)
    side = min(48.0, max(26.0, _WIDTH / n)) if counts else 13.0
    plot = new_plot(
        n * side,
        n * side,
        f"Confusion matrix of {n} classes; its commonest mistakes stand in the table below.",
    )
    axes, gap = plot.axes, 0.75 / side
    for cell in confusion_cells(evaluation):
        gid = f"cell-{cell.row}-{cell.column}"
        square = Rectangle(
            (cell.column + gap, cell.row + gap), 1 - 2 * gap, 1 - 2 * gap, color=BLUE, linewidth=0
        )
        square.set(alpha=0.12 + 0.88 * cell.share, gid=gid)
        axes.add_patch(square)
        plot.titles[gid] = (
            f"{cell.truth} seen as {cell.predicted}: {cell.count} ({percent(cell.share)})"
        )
        if counts:
            axes.text(
                cell.column + 0.5,
                cell.row + 0.5,
                str(cell.count),
                color=ON_BLUE if cell.share > 0.5 else INK,
                ha="center",
                va="center_baseline",
            )
    labels = [_shorten(score.name) for score in evaluation.classes]
    middles = [number + 0.5 for number in range(n)]
    axes.set(xlim=(0, n), ylim=(n, 0))
    axes.set_xticks(middles, labels, rotation=90)
    axes.set_yticks(middles, labels)
    axes.tick_params(labelcolor=INK, bottom=False, labelbottom=False, labeltop=True)
    return plot


def sensitivity_plot(evaluation: Evaluation) -> Plot | None:
    """Draw the sensitivity of each class with its interval; None without an image of any class."""
    scores: Sequence[ClassScore] = [score for score in evaluation.classes if score.n]
    if not scores:
        return None
    label = f"Sensitivity of {len(scores)} classes with intervals; the figures stand in the table."
    plot = new_plot(SIZE, 22.0 * len(scores), label)
    for row, score in enumerate(scores):
        sensitivity, gid = score.sensitivity, f"class-{row}"
        plot.titles[gid] = f"{score.name}: {percent(sensitivity)}, interval {bounds(sensitivity)}"
        _interval(plot, (sensitivity.low, sensitivity.high), (row, row), gid)
        plot.axes.plot(
            sensitivity.value, row, "o", color=BLUE, markersize=8, gid=gid, clip_on=False
        )
    percent_axis(plot.axes, "x", "Sensitivity (%)", step=0.5)
    plot.axes.set_ylim(len(scores) - 0.5, -0.5)
    plot.axes.set_yticks(range(len(scores)), [_shorten(score.name) for score in scores])
    plot.axes.tick_params(axis="y", labelcolor=INK)
    return plot


def reliability_plot(evaluation: Evaluation) -> Plot:
    """Draw accuracy over confidence with exact intervals, and how many images each bin has."""
    bins = evaluation.reliability
    error = decimal(evaluation.ensemble.calibration_error)
    plot = new_plot(
        SIZE,
        SIZE,
        f"Reliability diagram: accuracy over confidence in {len(bins)} bins; "
        f"expected calibration error {error}.",
    )
    counts = plot.figure.add_axes((0, -0.16, 1, 0.13), sharex=plot.axes)
    counts.set_axis_off()
    plot.axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 4)))
    for number, part in enumerate(bins):
        if part.n == 0:
            continue
        gid = f"bin-{number}"
        plot.titles[gid] = (
            f"{part.n} images: confidence {percent(part.confidence)}, "
            f"accuracy {percent(part.right)} {bounds(part.right)}"
        )
        _interval(plot, (part.confidence, part.confidence), (part.right.low, part.right.high), gid)
        plot.axes.plot(
            part.confidence, part.accuracy, "o", color=BLUE, markersize=8, gid=gid, clip_on=False
        )
        middle, width = (part.low + part.high) / 2, 0.9 * (part.high - part.low)
        counts.bar(middle, part.n, width, color=BLUE, alpha=0.3)[0].set_gid(gid)
    percent_axis(plot.axes, "x", "Confidence of the likeliest class (%)")
    percent_axis(plot.axes, "y", "Accuracy (%)")
    plot.axes.tick_params(axis="x", pad=0.16 * SIZE + 4)  # the bars stand between
    return plot


def risk_plot(evaluation: Evaluation) -> Plot:
    """Draw the risk-coverage curve on a scale that its greatest risk fits on."""
    curve = evaluation.risk_curve
    plot = new_plot(
        SIZE,
        SIZE,
        "Risk-coverage curve: share of wrong answers over the share of images answered; its area "
        f"is {decimal(evaluation.ensemble.selective_risk_area)}.",
    )
    greatest = max(point.risk for point in curve)
    most = next(step for step in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if step >= greatest)
    cut = [replace(one.wrong, high=min(one.wrong.high, most)) for one in curve]
    _band(plot, [BandPoint(one.coverage, wrong) for one, wrong in zip(curve, cut, strict=True)])
    plot.axes.plot(
        [point.coverage for point in curve], [point.risk for point in curve], color=BLUE, lw=2
    )
    for number, point in enumerate(curve):
        gid = f"point-{number}"
        plot.titles[gid] = (
            f"{percent(point.coverage)} answered, those of at least {percent(point.confidence)} "
            f"confidence: {percent(point.wrong)} {bounds(point.wrong)} wrong"
        )
        plot.axes.plot(
            point.coverage, point.risk, "o", color=BLUE, markersize=5, gid=gid, clip_on=False
        )
    percent_axis(plot.axes, "x", "Images answered, most confident first (%)")
    percent_axis(plot.axes, "y", "Wrong answers among them (%)", most)
    return plot


def half_answered(evaluation: Evaluation) -> RiskPoint:
    """Return the point of the risk-coverage curve that answers about half of the images."""
    return min(evaluation.risk_curve, key=lambda point: abs(point.coverage - 0.5))


def _interval(plot: Plot, x: tuple[float, float], y: tuple[float, float], gid: str) -> None:
    plot.axes.plot(
        x, y, color=BLUE, linewidth=2, alpha=0.55, solid_capstyle="round", gid=gid, clip_on=False
    )


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def urgent_plot(
    scores: UrgentRiskScores | None,
    words: tuple[str, str] = ("urgent", "urgent"),
    band: Sequence[BandPoint] = (),
) -> Plot | None:
    """Draw the curve as steps, on a scale that every level's interval fits on.

    `words` are for a condition of the question and for a photo from the threshold on; `band` is
    over-triage with its interval at shares of missed images. None where there is no curve.
    """
    condition, called = words
    if scores is None or not scores.curve:
        return None
    levels = [level for level in scores.levels if level.misses and level.false_alarms]
    needed = max(level.misses.rate.high for level in scores.levels if level.misses)
    widest = next((step for step in (0.1, 0.2, 0.4, 0.6, 0.8) if step >= needed), 1.0)
    plot = new_plot(
        SIZE,
        SIZE,
        f"Over-triage over the share of {condition} images missed, for every threshold; the levels "
        "are marked.",
    )
    missed, sent_on = [0.0], [1.0]
    for point in scores.curve:
        missed.append(min(point.missed, widest))
        sent_on.append(point.sent_on)
        if point.missed >= widest:
            break
    _band(plot, [point for point in band if point.at <= widest])
    # A higher threshold misses the next urgent image first; over-triage falls after that.
    plot.axes.step(missed, sent_on, where="post", color=BLUE, linewidth=2)
    for number, level in enumerate(levels):
        assert level.misses is not None
        assert level.false_alarms is not None
        x, y, gid = level.misses.rate, level.false_alarms.rate, f"level-{number}"
        plot.titles[gid] = (
            f"Level {percent(level.miss_rate)}: {percent(x)} {bounds(x)} missed, {percent(y)} "
            f"{bounds(y)} of others wrongly {called}"
        )
        plot.axes.errorbar(
            x.value,
            y.value,
            xerr=[[x.value - x.low], [x.high - x.value]],
            yerr=[[y.value - y.low], [y.high - y.value]],
            color=BLUE,
            alpha=0.6,
            linewidth=1,
        )
        chosen = level.miss_rate == scores.chosen
        plot.axes.plot(
            x.value, y.value, "o", color=BLUE, markersize=9 if chosen else 5, gid=gid, clip_on=False
        )
        plot.axes.annotate(
            f"{100 * level.miss_rate:g} %",
            (x.value, y.value),
            xytext=(8, 6),
            textcoords="offset points",
        )
    percent_axis(plot.axes, "x", f"{first_upper(condition)} images missed (%)", widest)
    percent_axis(plot.axes, "y", f"Other images wrongly {called} (%)")
    return plot


def _band(plot: Plot, points: Sequence[BandPoint]) -> None:
    """Shade a pointwise interval, below all other marks."""
    x = [point.at for point in points]
    low, high = ([getattr(point.figure, end) for point in points] for end in ("low", "high"))
    if x and not math.isnan(low[0]):
        plot.axes.fill([*x, *x[::-1]], [*low, *high[::-1]], color=BLUE, alpha=0.15, linewidth=0)


def roc_plot(question: QuestionScore) -> Plot:
    """Draw the ROC curve of a question with its band, and the operating point with its errors."""
    at, auroc = question.operating, question.auroc
    both = (
        f"At the operating point the sensitivity is {percent(at.sensitivity)} "
        f"{bounds(at.sensitivity)} and the specificity {percent(at.specificity)} "
        f"{bounds(at.specificity)}"
    )
    plot = new_plot(
        SIZE,
        SIZE,
        f"ROC curve of the {question.name} risk with its interval; its area is {decimal(auroc)} "
        f"{bounds(auroc, 'decimal')}. {both}.",
    )
    _band(plot, question.roc)
    plot.axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 4)))
    plot.axes.plot(
        [point.at for point in question.roc],
        [point.figure.value for point in question.roc],
        color=BLUE,
        linewidth=2,
    )
    x, y, gid = 1 - at.specificity.value, at.sensitivity.value, "operating"
    plot.titles[gid] = both
    _interval(plot, (1 - at.specificity.high, 1 - at.specificity.low), (y, y), gid)
    _interval(plot, (x, x), (at.sensitivity.low, at.sensitivity.high), gid)
    plot.axes.plot(x, y, "o", color=BLUE, markersize=9, gid=gid, clip_on=False)
    percent_axis(plot.axes, "x", "Over-triage, 1 − specificity (%)")
    percent_axis(plot.axes, "y", "Sensitivity (%)")
    return plot


def decision_plot(question: QuestionScore) -> Plot:
    """Draw the decision curve with its band, beside referring all and referring none."""
    points, threshold = question.decision, question.operating.threshold
    ten = next(point for point in points if point.threshold == 0.1)
    plot = new_plot(
        SIZE,
        SIZE,
        f"Decision curve of the {question.name} risk: net benefit over the threshold probability, "
        "beside referring all and referring none. At 10 % it is "
        f"{decimal(ten.net_benefit)} {bounds(ten.net_benefit, 'decimal')}, of referring all "
        f"{decimal(ten.refer_all)}; the table below has more.",
    )
    _band(plot, [BandPoint(point.threshold, point.net_benefit) for point in points])
    x = [point.threshold for point in points]
    first = points[0].net_benefit, points[0].refer_all
    # One group has no interval.
    highs = [one.value if math.isnan(one.high) else one.high for one in first]
    most = 1.15 * max(0.01, *highs)
    # Cut here, where it leaves the scale: the page knows no clipping.
    fall = [(0.0, question.operating.here.prevalence)]
    fall += [(one.threshold, one.refer_all.value) for one in points]
    fall = [(at, value) for at, value in fall if value >= -most / 4]
    plot.axes.plot(x, [0.0] * len(x), color=SOFT, linewidth=1)
    plot.axes.plot(*zip(*fall, strict=True), color=SOFT, linewidth=1, linestyle=(0, (4, 4)))
    plot.axes.plot(x, [point.net_benefit.value for point in points], color=BLUE, linewidth=2)
    for at, word in ((fall[-1], "refer all"), ((x[-1], 0.0), "refer none")):
        plot.axes.annotate(
            word, at, xytext=(-4, -5) if at[0] > 0.4 else (5, 4), textcoords="offset points",
            color=SOFT, ha="right" if at[0] > 0.4 else "left", va="top" if at[1] == 0 else "bottom",
        )  # fmt: skip
    if threshold is not None and threshold <= x[-1]:
        plot.titles["operating"] = f"The bundle calls photos positive from {percent(threshold)} on"
        plot.axes.plot([threshold] * 2, [-most / 4, most], color=BLUE, lw=1, gid="operating")
    percent_axis(plot.axes, "x", "Threshold probability (%)", 0.5, step=0.2)
    plot.axes.set_ylim(-most / 4, most)
    plot.axes.grid(axis="y", color=LINE, linewidth=1)
    plot.axes.set_ylabel("Net benefit (true positives an image)", color=SOFT)
    return plot
