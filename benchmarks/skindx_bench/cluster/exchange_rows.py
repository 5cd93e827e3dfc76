"""Rows of measurements, one an exchange, as tables and bars; fused against fixed groupings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from pydantic import Field

from skindx.comm.fabric import ring_bytes
from skindx.comm.grouping import GroupingCandidate, candidates, ddp_buckets, one_buffer, per_tensor
from skindx.core.cost.collectives import Cost, fit
from skindx.core.cost.profile import Trace
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx_bench.cluster.gradient_load import Load
from skindx_bench.harness.netlab import Link
from skindx_bench.harness.ranks import EmulatedCluster
from skindx_bench.harness.result import (
    Figure,
    bracketed,
    markdown_table,
    new_plot,
    ratio,
    terminal_table,
    write_plot,
)
from skindx_bench.harness.result import median as figure_of

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ExchangeRow:
    """One candidate of one part of the bench; seconds and bytes are those of one exchange."""

    part: str
    """Rows of one part took turns."""
    name: str
    """As the tables show it; nothing is looked up by it."""
    seconds: Sequence[float]
    """Of the slowest rank, round by round."""
    local_s: Sequence[float] = ()
    """The same work without wires, where it was measured."""
    sent_bytes: float | None = None
    """Mean of the ranks, by the exchange's own count."""
    wire_bytes: float | None = None
    """Mean of the nodes, by their interfaces' count."""
    floor_s: float | None = None
    """The bytes that the busiest link has to carry, divided by its rate."""
    hidden_s: float = 0.0
    """The part of the time that a backward pass takes, behind which an exchange can hide."""
    advice: str = ""
    """The key of `choice.ADVICE` that this row is the measurement of; "" for none."""
    setting: str = ""
    """Network and ranks, as the table of advice shows them."""

    @property
    def total(self) -> Figure:
        """Time of the exchange, ms."""
        return _ms(self.seconds)

    @property
    def local(self) -> Figure | None:
        """Time without wires, ms."""
        return _ms(self.local_s) if self.local_s else None

    @property
    def network(self) -> Figure | None:
        """Rest of the exchange's time, ms; below zero is noise."""
        if not self.local_s:
            return None
        return _ms([all_s - own_s for all_s, own_s in zip(self.seconds, self.local_s, strict=True)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        figures = {"total_ms": self.total, "local_ms": self.local, "network_ms": self.network}
        return {
            "part": self.part,
            "name": self.name,
            **{
                key: {"value": figure.value, "spread": list(figure.spread), "n": figure.n}
                for key, figure in figures.items()
                if figure
            },
            "sent_bytes": self.sent_bytes,
            "wire_bytes": self.wire_bytes,
            "floor_ms": self.floor_s and 1000 * self.floor_s,
        }


def _ms(seconds: Sequence[float]) -> Figure:
    return figure_of([1000 * elapsed for elapsed in seconds], "ms")


@dataclass
class Turns:
    """Lets candidates take turns; each rank reads its clock, and the slowest rank's time counts."""

    cluster: EmulatedCluster
    now_s: float = 0.0
    answers: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)

    def take(
        self, candidates: Mapping[str, tuple[str, Mapping[str, Any]]], rounds: int
    ) -> dict[str, list[float]]:
        """Return the seconds of each candidate: a command of the ranks and its arguments."""
        calls = {name: self._call(name, *command) for name, command in candidates.items()}
        return interleave(calls, rounds, clock=lambda: self.now_s)

    def _call(self, name: str, do: str, arguments: Mapping[str, Any]) -> Callable[[], None]:
        rounds = self.answers.setdefault(name, [])

        def call() -> None:
            answers = self.cluster.ask(do, **arguments)
            rounds.append(answers)
            self.now_s += max(answer["seconds"] for answer in answers)

        return call

    def mean(self, name: str, key: str) -> float:
        """Return the mean over ranks of what they counted, the median of the rounds."""
        return median(fmean(rank[key] for rank in answers) for answers in self.answers[name])


_COLUMNS = (
    "exchange", "total, ms", "local, ms", "network, ms", "floor, ms",
    "sent, MB", "on link, MB",
)  # fmt: skip


def _cells(row: ExchangeRow) -> list[str]:
    floor_ms = None if row.floor_s is None else 1000 * row.floor_s
    return [
        row.name,
        *(bracketed(figure) if figure else "" for figure in (row.total, row.local, row.network)),
        "" if floor_ms is None else f"{floor_ms:.1f}",
        *("" if size is None else f"{size / 1e6:.3f}" for size in (row.sent_bytes, row.wire_bytes)),
    ]


def parts_of(rows: Sequence[ExchangeRow]) -> dict[str, list[ExchangeRow]]:
    """Return the rows of each part, in order."""
    parts: dict[str, list[ExchangeRow]] = {}
    for row in rows:
        parts.setdefault(row.part, []).append(row)
    return parts


def tables(rows: Sequence[ExchangeRow]) -> "list[Table]":
    """Return one table a part, for a terminal."""
    return [
        terminal_table(part, _COLUMNS, [_cells(row) for row in own], no_wrap=True)
        for part, own in parts_of(rows).items()
    ]


def markdown(rows: Sequence[ExchangeRow]) -> str:
    """Return the tables as Markdown."""
    return "\n".join(
        f"{part}\n\n{markdown_table(_COLUMNS, [_cells(row) for row in own])}"
        for part, own in parts_of(rows).items()
    )


_NETWORK, _LOCAL, _FLOOR = "#8fb8de", "#e8a87c", "#333333"
_PANELS = 2
_BAR_INCHES = 0.42


def plot(path: Path, rows: Sequence[ExchangeRow]) -> None:
    """Draw one panel a part: time by exchange, its local share, and the floor of the wire."""
    # Parts with as many rows stand side by side.
    parts = dict(sorted(parts_of(rows).items(), key=lambda part: -len(part[1])))
    lines = -(-len(parts) // _PANELS)
    most = [
        max(len(own) for own in list(parts.values())[start : start + _PANELS])
        for start in range(0, len(parts), _PANELS)
    ]
    heights = [_BAR_INCHES * count + 0.9 for count in most]
    canvas = new_plot(11, sum(heights) + 0.5)
    grid = canvas.subplots(lines, _PANELS, squeeze=False, height_ratios=heights)
    for number, (part, those) in enumerate(parts.items()):
        _panel(grid.flat[number], part, those, most[number // _PANELS])
    for axes in list(grid.flat)[len(parts) :]:
        axes.set_visible(False)
    canvas.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False)
    write_plot(path, canvas, dpi=130)


def _panel(axes: Any, part: str, rows: Sequence[ExchangeRow], bars: int) -> None:
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


EXCHANGE = "dense"
"""The exchange that executes the plans, by its key among the ranks' exchanges."""

_FUSED = "fused"

_ELEMENTS = tuple(1 << power for power in (8, 12, 16, 18, 20, 22))
"""Sizes of the sums that the cost model is fitted to."""

_REPEATS = 3

_THEIRS, _OURS = "DeepSpeed, ZeRO 0", "fused in DeepSpeed"


class Pair(Settings):
    """A network and a computer: links of `rate_mbit`, a backward pass of `backward_s`."""

    rate_mbit: float = Field(gt=0)
    backward_s: float = Field(ge=0)


@dataclass(frozen=True)
class Fusion:
    """Result of one pair."""

    rows: list[ExchangeRow]
    over_best: Figure
    """How many times faster than the best fixed grouping."""
    over_zero0: Figure
    """How many times faster than DeepSpeed's own reduction at stage 0, both in its engine."""
    note: str


def measure(cluster: EmulatedCluster, load: Load, pair: Pair, trials: int, rounds: int) -> Fusion:
    """Plan for this pair, then let the plan and the fixed groupings take turns."""
    link = Link(pair.rate_mbit)
    cluster.lab.limit(link)
    trace = Trace(
        names=tuple(reversed(load.shapes)),
        sizes_bytes=tuple(4 * elements for elements in load.sizes),
        backward_s=tuple(pair.backward_s * load.work[name] for name in reversed(load.shapes)),
    )
    cost = _fitted(cluster, load.elements)
    chosen = _tune(cluster, trace, cost, trials)
    fixed = {
        "per tensor": per_tensor(trace),
        "DDP, 25 MB": ddp_buckets(trace),
        "one buffer": one_buffer(trace),
    }
    seconds = _take_turns(cluster, trace, {_FUSED: chosen.plan, **fixed}, rounds)
    engines = _in_engine(cluster, trace, chosen.plan, rounds)
    best = min(fixed, key=lambda name: median(seconds[name]))
    setting = f"{pair.rate_mbit:g} Mbit/s, backward {pair.backward_s:g} s, {cluster.ranks} ranks"
    part = f"Fused: {setting}"
    wire_s = ring_bytes(4 * load.elements, cluster.ranks) / link.bytes_per_s
    return Fusion(
        [
            ExchangeRow(
                part,
                name,
                samples,
                floor_s=wire_s,
                hidden_s=pair.backward_s,
                advice="fused" if name == _FUSED else "",
                setting=setting,
            )
            for name, samples in (seconds | engines).items()
        ],
        ratio(seconds[_FUSED], seconds[best]),
        ratio(engines[_OURS], engines[_THEIRS]),
        f"{part}: fitted {1000 * cost.alpha_s:.2f} ms + {1e9 * cost.beta_s_per_byte:.2f} ns/byte; "
        f"of the plans timed live {chosen.name!r} won, {len(chosen.plan)} groups, predicted "
        f"{chosen.predicted_s:.2f} s, took {median(seconds[_FUSED]):.2f} s.",
    )


def _in_engine(
    cluster: EmulatedCluster, trace: Trace, plan: Sequence[int], rounds: int
) -> dict[str, list[float]]:
    """Let DeepSpeed reduce by itself and through the plan, in turns."""
    common = {"groups": list(plan), "ready_s": trace.ready_s}
    kinds = {_THEIRS: "deepspeed", _OURS: "fused"}
    calls = {name: ("engine", {"kind": kind, **common}) for name, kind in kinds.items()}
    return Turns(cluster).take(calls, rounds)


def _fitted(cluster: EmulatedCluster, most: int) -> Cost:
    """Fit the cost model through the collective in use."""
    samples = [
        (4 * elements, cluster.slowest("sum", elements=elements))
        for _ in range(_REPEATS)
        for elements in _ELEMENTS
        if elements <= most
    ]
    return fit(samples)


def _tune(cluster: EmulatedCluster, trace: Trace, cost: Cost, trials: int) -> GroupingCandidate:
    """Time the plans that the model likes best, and return the fastest."""
    likely = {candidate.name: candidate for candidate in candidates(trace, cost)}
    plans = {name: candidate.plan for name, candidate in likely.items()}
    seconds = _take_turns(cluster, trace, plans, trials)
    return likely[min(likely, key=lambda name: median(seconds[name]))]


def _take_turns(
    cluster: EmulatedCluster,
    trace: Trace,
    plans: dict[str, Sequence[int]] | dict[str, list[int]],
    rounds: int,
) -> dict[str, list[float]]:
    ready_s = trace.ready_s
    return Turns(cluster).take(
        {
            name: (
                "backward",
                {"name": EXCHANGE, "groups": list(groups), "ready_s": ready_s},
            )
            for name, groups in plans.items()
        },
        rounds,
    )
