"""The curve of misses against over-triage, with the levels of the bundle on it."""

from skindx.evaluation.formatting import bounds, percent
from skindx.evaluation.report.plots import SIZE
from skindx.evaluation.report.svg import BLUE, Plot, new_plot, percent_axis
from skindx.evaluation.urgent_scores import UrgentRiskScores


def urgent_plot(scores: UrgentRiskScores | None) -> Plot | None:
    """Draw the curve as steps, on a scale that every level's interval fits on.

    None where there is no curve.
    """
    if scores is None or not scores.curve:
        return None
    levels = [level for level in scores.levels if level.misses and level.false_alarms]
    needed = max(level.misses.rate.high for level in scores.levels if level.misses)
    widest = next((step for step in (0.1, 0.2, 0.4, 0.6, 0.8) if step >= needed), 1.0)
    plot = new_plot(
        SIZE,
        SIZE,
        "Over-triage over the share of urgent images missed, for every threshold; the levels are "
        "marked.",
    )
    missed, sent_on = [0.0], [1.0]
    for point in scores.curve:
        missed.append(min(point.missed, widest))
        sent_on.append(point.sent_on)
        if point.missed >= widest:
            break
    # A higher threshold misses the next urgent image first; over-triage falls after that.
    plot.axes.step(missed, sent_on, where="post", color=BLUE, linewidth=2)
    for number, level in enumerate(levels):
        assert level.misses is not None
        assert level.false_alarms is not None
        x, y, gid = level.misses.rate, level.false_alarms.rate, f"level-{number}"
        plot.titles[gid] = (
            f"Level {percent(level.miss_rate)}: {percent(x)} {bounds(x)} missed, {percent(y)} "
            f"{bounds(y)} of others wrongly urgent"
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
    percent_axis(plot.axes, "x", "Urgent images missed (%)", widest)
    percent_axis(plot.axes, "y", "Other images wrongly urgent (%)")
    return plot
