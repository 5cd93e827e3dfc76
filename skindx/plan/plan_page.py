"""Plots of a plan as SVG, without a library: they scale, and take the page's colours."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from skindx import __version__
from skindx.core.atomic_files import write_text
from skindx.core.cost.events import Step
from skindx.core.text import html_environment, keep_units
from skindx.plan.outcome import PlanOutcome
from skindx.plan.plan import Plan, SpeedupPoint
from skindx.plan.plan_text import candidates, summary
from skindx.plan.units import seconds

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 48

_DECADE = 6
"""Values that differ by a smaller factor stand on an even scale."""


@dataclass(frozen=True)
class PlotAxis:
    """Values to pixels."""

    low: float
    high: float
    begin: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.log:
            share = (math.log(value) - math.log(self.low)) / (
                math.log(self.high) - math.log(self.low)
            )
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def _axis(values: Sequence[float], begin: float, end: float, *, log: bool) -> PlotAxis:
    low, high = min(values), max(values)
    log = log and high > _DECADE * low
    if log:
        low, high = low / 1.15, high * 1.15
    else:
        room = 0.08 * (high - low or abs(high) or 1.0)
        low, high = max(0.0, low - room) if low >= 0 else low - room, high + room
    return PlotAxis(low, high, begin, end, log)


def _ticks(axis: PlotAxis) -> list[float]:
    """Return round numbers along an axis, 3 to 7 of them."""
    if axis.log:
        powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
        found = [m * 10.0**p for p in powers for m in (1, 2, 5)]
        found = [value for value in found if axis.low <= value <= axis.high]
        return found if len(found) <= 7 else found[:: math.ceil(len(found) / 7)]
    step = 10 ** math.floor(math.log10((axis.high - axis.low) / 3))
    for factor in (1, 2, 5, 10):
        if (axis.high - axis.low) / (step * factor) <= 6:
            step *= factor
            break
    first = math.ceil(axis.low / step)
    return [number * step for number in range(first, int(axis.high / step) + 1)]


def _frame(
    x: PlotAxis,
    y: PlotAxis,
    *,
    x_name: str,
    y_name: str,
    x_form: Callable[[float], str],
    y_form: Callable[[float], str],
    x_ticks: Sequence[float] | None = None,
) -> list[str]:
    parts = []
    for value in x_ticks or _ticks(x):
        at = x(value)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{y.end:.1f}" y2="{y.begin:.1f}"/>'
        )
        parts.append(
            f'<text x="{at:.1f}" y="{y.begin + 16:.1f}" text-anchor="middle">{x_form(value)}</text>'
        )
    for value in _ticks(y):
        at = y(value)
        parts.append(
            f'<line class="grid" x1="{x.begin:.1f}" x2="{x.end:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text x="{x.begin - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{y_form(value)}</text>'
        )
    middle = (x.begin + x.end) / 2
    parts.append(
        f'<text class="name" x="{middle:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{escape(x_name)}</text>"
    )
    parts.append(
        f'<text class="name" transform="translate(12 {(y.begin + y.end) / 2:.1f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_name)}</text>'
    )
    return parts


def _svg(parts: Sequence[str], title: str, height: int = _HEIGHT) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n{inside}\n</svg>"
    )


def _area() -> tuple[tuple[float, float], tuple[float, float]]:
    return (_LEFT, _WIDTH - _RIGHT), (_HEIGHT - _BOTTOM, _TOP)


def pareto(plan: Plan) -> str:
    """Return time against money (or hours of nodes) for all choices; the best ones are joined."""
    points = [_cost(outcome) for outcome in plan.found.every]
    across, up = _area()
    x = _axis([cost for _, cost in points], *across, log=True)
    y = _axis([taken for taken, _ in points], *up, log=True)
    priced = plan.chosen.money is not None
    whole = bool(plan.chosen.seconds)
    name = (
        f"money, {plan.machine.cluster.currency}"
        if priced
        else "hours of all nodes together"
        if whole
        else "node-seconds for 1,000 images"
    )
    parts = _frame(
        x,
        y,
        x_name=name,
        y_name="time" if whole else "time for 1,000 images",
        x_form=lambda value: f"{value:.3g}",
        y_form=seconds,
    )
    front = _front(points)
    if len(front) > 1:
        line = " ".join(f"{x(cost):.1f},{y(taken):.1f}" for taken, cost in front)
        parts.append(f'<polyline class="front" points="{line}"/>')
    for outcome, (taken, cost) in zip(plan.found.every, points, strict=True):
        kind = "lossy" if outcome.choice.strategy.lossy else "exact"
        label = (
            f"{outcome.choice.label}, {outcome.choice.ranks} ranks: {seconds(taken)}, {cost:.3g}"
        )
        parts.append(
            f'<circle class="{kind}" cx="{x(cost):.1f}" cy="{y(taken):.1f}" r="4">'
            f"<title>{escape(label)}</title></circle>"
        )
    taken, cost = _cost(plan.chosen)
    at_x, at_y = x(cost), y(taken)
    anchor, dx = ("end", -10) if at_x > _WIDTH / 2 else ("start", 10)
    parts.append(f'<circle class="chosen" cx="{at_x:.1f}" cy="{at_y:.1f}" r="7"/>')
    parts.append(
        f'<text class="mark" x="{at_x + dx:.1f}" y="{at_y - 8:.1f}" text-anchor="{anchor}">'
        f"{escape(plan.chosen.choice.label)}, {plan.chosen.choice.ranks} ranks</text>"
    )
    return _svg(parts, "Time against money for every choice")


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


def speedup(points: Sequence[SpeedupPoint]) -> str:
    """Return the speed-up over one rank with its band; dashed beyond what is known."""
    across, up = _area()
    x = _axis([point.ranks for point in points] + [2], *across, log=True)
    y = _axis(
        [point.low for point in points] + [point.high for point in points] + [2], *up, log=True
    )
    parts = _frame(
        x,
        y,
        x_name="ranks",
        y_name="speed-up over one rank",
        x_form=lambda value: f"{value:,.0f}",
        y_form=lambda value: f"{value:,.3g}",
        x_ticks=[point.ranks for point in points if point.ranks in (1, 4, 16, 64, 256, 1024)],
    )
    band = [(point.ranks, point.high) for point in points]
    band += [(point.ranks, point.low) for point in reversed(points)]
    shape = " ".join(f"{x(ranks):.1f},{y(value):.1f}" for ranks, value in band)
    parts.append(f'<polygon class="band" points="{shape}"/>')
    most = min(points[-1].ranks, y.high)
    parts.append(
        f'<line class="ideal" x1="{x(1):.1f}" y1="{y(1):.1f}" '
        f'x2="{x(most):.1f}" y2="{y(most):.1f}"/>'
    )
    known = [point for point in points if not point.beyond]
    for chosen, kind in ((points, "far"), (known, "curve")):
        line = " ".join(f"{x(point.ranks):.1f},{y(point.speedup):.1f}" for point in chosen)
        parts.append(f'<polyline class="{kind}" points="{line}"/>')
    for point in points:
        label = f"{point.ranks} ranks: {point.speedup:.1f} [{point.low:.1f}, {point.high:.1f}]"
        parts.append(
            f'<circle class="exact" cx="{x(point.ranks):.1f}" cy="{y(point.speedup):.1f}" r="3">'
            f"<title>{label}</title></circle>"
        )
    return _svg(parts, "Speed-up over one rank, with its 90 % band")


_KINDS = (
    ("read", "read"),
    ("copy", "read"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("update", "update"),
)


def timeline(step: Step) -> str:
    """Return one step: a row for each resource, tasks that overlap beneath one another."""
    rows: list[tuple[str, float]] = []
    bars: list[tuple[int, str, str, float, float]] = []
    ends: list[tuple[str, float]] = []
    names = {"cores": "cores", "device": "GPU", "copier": "copy", "link": "network"}
    order = {"cores": 0, "device": 1, "copier": 2, "link": 3}
    pairs = [
        pair for pair in zip(step.tasks, step.spans, strict=True) if pair[1].end_s > pair[1].begin_s
    ]
    for task, span in sorted(pairs, key=lambda pair: (order[pair[0].resource], pair[1].begin_s)):
        free = [
            n
            for n, (resource, end_s) in enumerate(ends)
            if resource == task.resource and end_s <= span.begin_s + 1e-12
        ]
        row = free[0] if free else len(ends)
        if row == len(ends):
            first = all(resource != task.resource for resource, _ in ends)
            ends.append((task.resource, span.end_s))
            rows.append((names[task.resource] if first else "", 0.0))
        else:
            ends[row] = (task.resource, span.end_s)
        kind = next((kind for word, kind in _KINDS if task.name == word), "communicate")
        bars.append((row, kind, task.name, span.begin_s, span.end_s))
    height = _TOP + 30 * len(rows) + _BOTTOM
    x = PlotAxis(0.0, step.seconds or 1.0, _LEFT, _WIDTH - _RIGHT, log=False)
    parts = []
    bottom = _TOP + 30 * len(rows)
    for value in _ticks(x):
        parts.append(
            f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" '
            f'y1="{_TOP}" y2="{bottom}"/>'
        )
        parts.append(
            f'<text x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">'
            f"{seconds(value) if value else '0'}</text>"
        )
    for number, (name, _) in enumerate(rows):
        parts.append(
            f'<text x="{_LEFT - 8}" y="{_TOP + 30 * number + 19}" text-anchor="end">{name}</text>'
        )
    for row, kind, name, begin_s, end_s in bars:
        width = max(0.6, x(end_s) - x(begin_s) - 0.4)
        label = f"{name}: {seconds(end_s - begin_s)}"
        parts.append(
            f'<rect class="{kind}" x="{x(begin_s):.1f}" y="{_TOP + 30 * row + 3}" '
            f'width="{width:.1f}" height="24" rx="2"><title>{escape(label)}</title></rect>'
        )
    return _svg(parts, "One step of one rank", height)


# A plan as one self-contained page.

_MOST = 40


def write_page(path: Path, plan: Plan) -> None:
    """Write HTML without scripts, fonts or images of others, atomically."""
    from markupsafe import Markup

    headings, rows = candidates(plan, _MOST)
    machine = plan.machine
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
            parts=[
                (name, seconds, seconds / plan.chosen.first.step_s)
                for name, seconds in plan.chosen.first.step.parts.items()
            ],
            pareto=Markup(pareto(plan)),  # noqa: S704 (made by us, of escaped names)
            speedup=Markup(speedup(plan.curve)),  # noqa: S704
            timeline=Markup(timeline(plan.chosen.first.step)),  # noqa: S704
            beyond=any(point.beyond for point in plan.curve),
            networks=", ".join(profile.name for profile in machine.profiles.networks),
            cluster=machine.cluster,
            host=machine.profiles.host,
        )
    )
    write_text(path, keep_units(page))
