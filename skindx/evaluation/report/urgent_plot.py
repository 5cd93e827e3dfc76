"""Where the marks of the curve of misses against over-triage stand, in SVG units."""

from dataclasses import dataclass

from skindx.evaluation.urgent_scores import UrgentRiskScores
from skindx.metrics import Interval


@dataclass(frozen=True, slots=True)
class LevelMark:
    """A level on the curve, with the ends of both intervals."""

    x: float
    y: float
    left: float
    right: float
    top: float
    bottom: float
    miss_rate: float
    is_chosen: bool
    missed: Interval
    sent_on: Interval


@dataclass(frozen=True, slots=True)
class UrgentPlot:
    """A square of `size` units: over-triage upwards, misses to the right up to `widest`."""

    size: float
    widest: float
    line: tuple[tuple[float, float], ...]
    marks: tuple[LevelMark, ...]


def urgent_plot(scores: UrgentRiskScores | None, size: float = 300.0) -> UrgentPlot | None:
    """Lay out the curve as steps, on a scale that every level's interval fits on.

    None where there is no curve.
    """
    if scores is None or not scores.curve:
        return None
    rates = [level.misses.rate for level in scores.levels if level.misses]
    needed = max(rate.high for rate in rates)
    widest = next((step for step in (0.1, 0.2, 0.4, 0.6, 0.8) if step >= needed), 1.0)

    def across(missed: float) -> float:
        return size * min(missed, widest) / widest

    line = [(0.0, 0.0)]
    for point in scores.curve:
        # A higher threshold misses the next urgent image first; over-triage falls after that.
        x, y = across(point.missed), size * (1 - point.sent_on)
        line += [(x, line[-1][1]), (x, y)]
        if point.missed >= widest:
            break
    marks = tuple(
        LevelMark(
            across(level.misses.rate.value),
            size * (1 - level.false_alarms.rate.value),
            across(level.misses.rate.low),
            across(level.misses.rate.high),
            size * (1 - level.false_alarms.rate.high),
            size * (1 - level.false_alarms.rate.low),
            level.miss_rate,
            level.miss_rate == scores.chosen,
            level.misses.rate,
            level.false_alarms.rate,
        )
        for level in scores.levels
        if level.misses and level.false_alarms
    )
    return UrgentPlot(size, widest, tuple(line), marks)
