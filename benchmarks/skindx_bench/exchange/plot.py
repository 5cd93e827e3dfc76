"""The rows of the exchange bench as bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skindx_bench.exchange.rows import Row, parts_of
from skindx_bench.harness.writing import new_plot, write_plot

_NETWORK, _LOCAL, _FLOOR = "#8fb8de", "#e8a87c", "#333333"
_COLUMNS = 2
_BAR_INCHES = 0.42


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw one panel a part: time by exchange, its local share, and the floor of the wire."""
    # Parts with as many rows stand side by side.
    parts = dict(sorted(parts_of(rows).items(), key=lambda part: -len(part[1])))
    lines = -(-len(parts) // _COLUMNS)
    most = [
        max(len(own) for own in list(parts.values())[start : start + _COLUMNS])
        for start in range(0, len(parts), _COLUMNS)
    ]
    heights = [_BAR_INCHES * count + 0.9 for count in most]
    canvas = new_plot(11, sum(heights) + 0.5)
    grid = canvas.subplots(lines, _COLUMNS, squeeze=False, height_ratios=heights)
    for number, (part, those) in enumerate(parts.items()):
        _panel(grid.flat[number], part, those, most[number // _COLUMNS])
    for axes in list(grid.flat)[len(parts) :]:
        axes.set_visible(False)
    canvas.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False)
    write_plot(path, canvas, dpi=130)


def _panel(axes: Any, part: str, rows: Sequence[Row], bars: int) -> None:
    """Draw a part, in a panel with room for `bars`."""
    for place, row in enumerate(rows):
        total = row.total
        local = row.local.value if row.local else 0.0
        low, high = total.spread
        axes.barh(place, min(local, total.value), color=_LOCAL, height=0.6)
        axes.barh(
            place,
            max(0.0, total.value - local),
            left=local,
            color=_NETWORK,
            height=0.6,
            xerr=[[total.value - low], [high - total.value]],
            error_kw={"capsize": 3, "elinewidth": 1},
        )
        if row.floor_s is not None:
            floor_ms = 1000 * row.floor_s
            axes.plot([floor_ms, floor_ms], [place - 0.38, place + 0.38], color=_FLOOR, lw=2)
        axes.annotate(
            f"{total.value:.1f}" if total.value < 100 else f"{total.value:,.0f}",
            (max(high, 1000 * (row.floor_s or 0)), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_ylim(bars - 0.5, -0.5)
    ends = [max(row.total.spread[1], 1000 * (row.floor_s or 0)) for row in rows]
    axes.set_xlim(0, 1.15 * max(ends))  # room for the numbers
    axes.set_xlabel("ms")
    axes.set_title(part, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Patch(color=_LOCAL, label="local work"),
        Patch(color=_NETWORK, label="network (or all, where local work was not measured)"),
        Line2D([], [], color=_FLOOR, lw=2, label="wire floor"),
    ]
