"""A plan as one self-contained page, with its plots."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from skindx import __version__
from skindx.core.atomic_files import write_text
from skindx.core.cost.events import Step
from skindx.core.svg_plots import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LINE,
    ORANGE,
    SOFT,
    VIOLET,
    Plot,
    new_plot,
)
from skindx.core.text import html_environment, keep_units
from skindx.plan.outcome import PlanOutcome
from skindx.plan.plan import Plan
from skindx.plan.plan_text import candidates, summary
from skindx.plan.readable import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 40
_WIDTH, _HEIGHT, _ROW = 560.0, 276.0, 30.0
"""Pixels of a plot, and of a row of the timeline."""
_DECADE = 6
"""Values that differ by a smaller factor stand on an even scale."""


def write_page(path: Path, plan: Plan) -> None:
    """Write HTML without scripts, fonts or images of others, atomically."""
    headings, rows = candidates(plan, _MOST)
    machine, step = plan.machine, plan.chosen.first.step
    page = (
        html_environment("skindx.plan")
        .get_template("plan.html.jinja")
        .render(
            version=__version__,
            summary=summary(plan),
            bottleneck=plan.bottleneck,
            changes=plan.changes,
            notes=plan.notes,
            advice=plan.advice,
            headings=headings,
            rows=rows,
            parts=[(name, took, took / step.seconds) for name, took in step.parts.items()],
            pareto=pareto(plan).svg(),
            timeline=timeline(step).svg(),
            networks=", ".join(profile.name for profile in machine.profiles.networks),
            cluster=machine.cluster,
            host=machine.profiles.host,
        )
    )
    write_text(path, keep_units(page))


def pareto(plan: Plan) -> Plot:
    """Return time against money (or hours of nodes) for all choices; the best ones are joined."""
    plot = new_plot(_WIDTH, _HEIGHT, "Time against money for every choice")
    axes, points = plot.axes, [_cost(outcome) for outcome in plan.search_result.every]
    whole = bool(plan.chosen.seconds)
    name = "hours of all nodes together" if whole else "node-seconds for 1,000 images"
    if plan.chosen.money is not None:
        name = f"money, {plan.machine.cluster.currency}"
    _scale(axes, "x", [cost for _, cost in points], name, lambda value: f"{value:.3g}")
    time = "time" if whole else "time for 1,000 images"
    _scale(axes, "y", [taken for taken, _ in points], time, seconds)
    front = _front(points)
    axes.plot([cost for _, cost in front], [taken for taken, _ in front], color=BLUE, alpha=0.5)
    for number, (outcome, (taken, cost)) in enumerate(
        zip(plan.search_result.every, points, strict=True)
    ):
        color = ORANGE if outcome.choice.strategy.lossy else BLUE
        axes.plot(cost, taken, "o", color=color, markersize=8, gid=f"choice{number}")
        plot.titles[f"choice{number}"] = (
            f"{outcome.choice.label}, {outcome.choice.ranks} ranks: {seconds(taken)}, {cost:.3g}"
        )
    taken, cost = _cost(plan.chosen)
    axes.plot(cost, taken, "o", markersize=14, fillstyle="none", color=INK, markeredgewidth=2)
    right = axes.transAxes.inverted().transform(axes.transData.transform((cost, taken)))[0] > 0.5
    axes.annotate(
        f"{plan.chosen.choice.label}, {plan.chosen.choice.ranks} ranks",
        (cost, taken),
        xytext=(-10 if right else 10, 8),
        textcoords="offset points",
        ha="right" if right else "left",
        color=INK,
    )
    return plot


def _cost(outcome: PlanOutcome) -> tuple[float, float]:
    """Return seconds, and money or what stands for it."""
    if not outcome.seconds:
        taken = 1000 * outcome.score_s
        return taken, taken * outcome.nodes
    if outcome.money:
        return outcome.seconds, outcome.money
    return outcome.seconds, outcome.nodes * outcome.seconds / 3600


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that none beats in both, by time."""
    front: list[tuple[float, float]] = []
    for taken, cost in sorted(points):
        if not front or cost < front[-1][1]:
            front.append((taken, cost))
    return front


_COLORS = {"read": GREY, "forward": BLUE, "backward": VIOLET, "update": GREEN}
_RESOURCES = {"cores": "cores", "device": "GPU", "link": "network"}


def timeline(step: Step) -> Plot:
    """Return one step: a row for each resource, tasks that overlap beneath one another."""
    tasks = list(step.rows())
    counts = {
        name: 1 + max((row for task, _, row in tasks if task.resource == name), default=-1)
        for name in _RESOURCES
    }
    firsts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    count = sum(counts.values())
    plot = new_plot(1.5 * _WIDTH, _ROW * count, "One step of one rank")
    axes = plot.axes
    for number, (task, span, row) in enumerate(tasks):
        took_s, gid = span.end_s - span.begin_s, f"task{number}"
        color, place = _COLORS.get(task.name, ORANGE), firsts[task.resource] + row
        axes.barh(place, took_s, left=span.begin_s, height=0.8, color=color)[0].set_gid(gid)
        plot.titles[gid] = f"{task.name}: {seconds(took_s)}"
    shown = [name for name in _RESOURCES if counts[name]]
    axes.set_yticks([firsts[name] for name in shown], [_RESOURCES[name] for name in shown])
    axes.set(xlim=(0.0, step.seconds or 1.0), ylim=(count - 0.5, -0.5))
    axes.xaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")
    axes.grid(axis="x", color=LINE, linewidth=1)
    return plot


def _scale(
    axes: "Axes",
    which: Literal["x", "y"],
    values: Sequence[float],
    name: str,
    text: Callable[[float], str],
) -> None:
    """Give an axis a scale that shows all values with some room, ticks in words, and a name."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high, axis = min(values), max(values), getattr(axes, f"{which}axis")
    if high > _DECADE * low > 0:
        axes.set(**{f"{which}scale": "log", f"{which}lim": (low / 1.15, high * 1.15)})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    else:
        room = 0.08 * (high - low or abs(high) or 1.0)
        axes.set(**{f"{which}lim": (max(0.0, low - room) if low >= 0 else low - room, high + room)})
    axis.set_major_formatter(lambda value, _: text(value))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)
    axes.grid(axis=which, color=LINE, linewidth=1)
    axis.set_label_text(name, color=SOFT)
