"""Where the marks of the report's plots stand, in SVG units; the template draws them."""

from dataclasses import dataclass

from skindx.evaluation.results import Evaluation
from skindx.metrics import proportion_interval

COUNTS_UP_TO = 25  # classes; beyond it a cell is too small to hold a number
_WIDTH = 880.0  # of the page
_LETTER = 6.4  # units a letter of a label takes
_LONGEST = 30  # letters of a label


@dataclass(frozen=True, slots=True)
class Cell:
    """One pair of true and predicted class that occurs; `share` is of the true class's pictures."""

    x: float
    y: float
    share: float
    count: int
    truth: str
    predicted: str


@dataclass(frozen=True, slots=True)
class ConfusionPlot:
    """A square of cells with the classes' labels beside and above it."""

    left: float
    top: float
    side: float
    width: float
    height: float
    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    counts: bool


def confusion_plot(evaluation: Evaluation) -> ConfusionPlot:
    """Lay out the confusion matrix; rows are true classes."""
    names = [each.name for each in evaluation.classes]
    labels = tuple(_shorten(name) for name in names)
    counts = len(names) <= COUNTS_UP_TO
    margin = max(len(label) for label in labels) * _LETTER + 14
    side = min(48.0, max(26.0, (_WIDTH - margin) / len(names))) if counts else 13.0
    cells = tuple(
        Cell(
            margin + column * side,
            margin + row * side,
            count / evaluation.classes[row].n,
            count,
            names[row],
            names[column],
        )
        for row, line in enumerate(evaluation.confusion)
        for column, count in enumerate(line)
        if count
    )
    extent = margin + side * len(names) + 2
    return ConfusionPlot(margin, margin, side, extent, extent, labels, cells, counts)


def top_confusions(evaluation: Evaluation, limit: int = 8) -> list[Cell]:
    """Return the commonest mistakes: true class, predicted class, count and share of the true."""
    wrong = [cell for cell in confusion_plot(evaluation).cells if cell.truth != cell.predicted]
    return sorted(wrong, key=lambda cell: (-cell.count, -cell.share))[:limit]


@dataclass(frozen=True, slots=True)
class Dot:
    """One bin of confidence: its dot, the ends of its interval, its share of all pictures."""

    x: float
    y: float
    low_y: float
    high_y: float
    left: float
    bar: float
    n: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class ReliabilityPlot:
    """A unit square of `size` units; `step` is the width of a bin."""

    size: float
    step: float
    dots: tuple[Dot, ...]


def reliability_plot(evaluation: Evaluation, size: float = 300.0) -> ReliabilityPlot:
    """Lay out accuracy over confidence, with the exact interval in each bin that has pictures."""
    most = max(each.n for each in evaluation.reliability)
    dots = []
    for each in evaluation.reliability:
        if each.n == 0:
            continue
        interval = proportion_interval(each.accuracy, each.n, level=evaluation.level)
        dots.append(
            Dot(
                x=size * each.confidence,
                y=size * (1 - each.accuracy),
                low_y=size * (1 - interval.low),
                high_y=size * (1 - interval.high),
                left=size * each.low,
                bar=each.n / most,
                n=each.n,
                confidence=each.confidence,
                accuracy=each.accuracy,
            )
        )
    return ReliabilityPlot(size, size / len(evaluation.reliability), tuple(dots))


@dataclass(frozen=True, slots=True)
class RiskDot:
    """One point of the risk-coverage curve and its place."""

    x: float
    y: float
    coverage: float
    risk: float
    confidence: float


@dataclass(frozen=True, slots=True)
class RiskPlot:
    """A square of `size` units whose height is the risk `top`; `half` answers about half."""

    size: float
    top: float
    dots: tuple[RiskDot, ...]
    half: RiskDot


def risk_plot(evaluation: Evaluation, size: float = 300.0) -> RiskPlot:
    """Lay out the risk-coverage curve on a scale that its greatest risk fits on."""
    top = next(
        step
        for step in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
        if step >= max(each.risk for each in evaluation.risk_curve)
    )
    dots = tuple(
        RiskDot(
            size * each.coverage,
            size * (1 - each.risk / top),
            each.coverage,
            each.risk,
            each.confidence,
        )
        for each in evaluation.risk_curve
    )
    return RiskPlot(size, top, dots, min(dots, key=lambda dot: abs(dot.coverage - 0.5)))


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
