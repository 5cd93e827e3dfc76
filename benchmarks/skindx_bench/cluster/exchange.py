"""Gradient exchanges on an emulated cluster: what each takes of network, processor and bytes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from skindx.comm.fabric import ring_bytes
from skindx.core.atomic_files import write_text
from skindx.core.settings_base import Settings
from skindx_bench.cluster import exchange_rows
from skindx_bench.cluster.exchange_rows import ExchangeRow, Pair, Turns
from skindx_bench.cluster.gradient_load import Load
from skindx_bench.harness.netlab import Link, NetLab, require
from skindx_bench.harness.ranks import EmulatedCluster
from skindx_bench.harness.result import Figure, Result, bracketed, markdown_table, median, ratio
from skindx_bench.harness.training import kept_when_stopped

ADVICE = {
    "dense": ("`fused` in one message after backward, as `dense`", "a network that keeps up"),
    "dense-bf16": ("the same, `wire: bf16`", "a network that nearly keeps up"),
    "fused": ("`fused` behind backward", "several nodes, a network that nearly keeps up"),
    "hierarchical": ("`hierarchical`", "several ranks share a node's link"),
    "multicolor": ("`multicolor`", "many ranks, high latency"),
    "powersgd": ("`powersgd`, rank 4", "a slow network, fast processors"),
    "topk": ("`topk`", "a slow network, few ranks"),
    "gtopk": ("`gtopk`", "a slow network, many ranks"),
}
"""Key -> `exchange.kind`, and when to take it."""

_HEADINGS = ("`exchange.kind`", "measured with", "ms", "of these local", "MB a rank", "when")


def choice(rows: Sequence[ExchangeRow]) -> str:
    """Return a Markdown table of the rows that an `exchange.kind` is advised by, "" without any.

    For a row behind a backward pass the time is what the exchange adds to the pass.
    """
    cells = [_cells(row) for key in ADVICE for row in rows if row.advice == key]
    return markdown_table(_HEADINGS, cells) if cells else ""


def _cells(row: ExchangeRow) -> tuple[str, ...]:
    kind, when = ADVICE[row.advice]
    beyond = replace(row, seconds=[seconds - row.hidden_s for seconds in row.seconds])
    sent = "" if row.sent_bytes is None else f"{row.sent_bytes / 1e6:.3g}"
    return kind, row.setting, _ms(beyond.total), _ms(row.local), sent, when


def _ms(figure: Figure | None) -> str:
    return bracketed(figure, ",.0f") if figure else ""


class Config(Settings):
    """Each part can be left out; with a small model all of it takes seconds."""

    parts: tuple[Literal["full", "alone", "hierarchical", "fusion"], ...] = (
        "full",
        "alone",
        "hierarchical",
        "fusion",
    )
    model: str = "resnet50"
    """A timm model, whose parameters' shapes are taken."""
    density: float = Field(0.001, gt=0, le=1)
    rounds: int = Field(7, ge=2)
    ranks: int = Field(4, ge=2, le=32)
    """Of the full exchange and of fusion, one in each namespace."""
    rate_mbit: float = Field(1000, gt=0)
    """Of the full and of the hierarchical exchange."""
    alone_ranks: tuple[Annotated[int, Field(ge=2, le=32)], ...] = Field((4, 8), min_length=1)
    """Setting in which top-k and gTop-k are compared by communication alone."""
    alone_mbit: float = Field(100, gt=0)
    """Slow: here a burst lets messages of some kB beat a fast wire."""
    pairs: tuple[Pair, ...] = (
        Pair(rate_mbit=1000, backward_s=0.5),
        Pair(rate_mbit=1000, backward_s=1.5),
        Pair(rate_mbit=500, backward_s=2.0),
    )
    """Networks and backward passes that a fused plan is made for."""
    trials: int = Field(5, ge=2)
    """Rounds in which a fused plan is chosen, as many as training takes."""
    out: Path = Path("runs/exchange")


_DENSE = exchange_rows.EXCHANGE
_KINDS: dict[str, dict[str, Any]] = {
    _DENSE: {"kind": "fused", "tune": False},
    "dense-bf16": {"kind": "fused", "tune": False, "wire": "bf16"},
    "topk": {"kind": "topk", "warmup": ()},
    "gtopk": {"kind": "gtopk", "warmup": ()},
    "powersgd": {"kind": "powersgd", "rank": 4},
    "multicolor": {"kind": "multicolor"},
}
"""Key of a full exchange, as in `choice.ADVICE` -> its settings."""

_NAMES = {_DENSE: "dense fp32", "dense-bf16": "dense bf16", "powersgd": "powersgd rank 4"}
"""Key -> its name in tables, where that is not the key."""

_SPARSE = ("topk", "gtopk")

_OVER = {
    "gtopk_over_fp32": _DENSE,
    "gtopk_over_bf16": "dense-bf16",
    "gtopk_over_powersgd4": "powersgd",
}
_NODES = 2
_RANKS_PER_NODE = 2


@dataclass
class ExchangeResults:
    """The results of all parts; each part adds its own."""

    figures: dict[str, Figure] = field(default_factory=dict)
    rows: list[ExchangeRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measure(settings: Config, load: Load, found: ExchangeResults) -> None:
    """Add the parts that are asked for to `found`, as many as can on the same ranks."""
    parts = set(settings.parts)
    alone = list(dict.fromkeys(settings.alone_ranks)) if "alone" in parts else []
    if parts & {"full", "fusion"}:
        with _cluster(settings, settings.ranks, settings.ranks, load, _KINDS) as cluster:
            if "full" in parts:
                _full(found, settings, cluster)
            if settings.ranks in alone:
                alone.remove(settings.ranks)
                _alone(found, settings, load, cluster)
            if "fusion" in parts:
                _fusion(found, settings, load, cluster)
    for ranks in alone:
        kinds = {name: _KINDS[name] for name in _SPARSE}
        with _cluster(settings, ranks, ranks, None, kinds) as cluster:
            _alone(found, settings, load, cluster)
    if "hierarchical" in parts:
        _hierarchical(found, settings, load)


@contextmanager
def _cluster(
    settings: Config, nodes: int, ranks: int, load: Load | None, kinds: Mapping[str, Any]
) -> Iterator[EmulatedCluster]:
    """Build a lab with its ranks; without a load they have a gradient of one element."""
    shapes = load.shapes if load else {"nothing": (1,)}
    density = {"density": settings.density}
    kinds = {key: kind | (density if key in _SPARSE else {}) for key, kind in kinds.items()}
    link = Link(settings.rate_mbit)
    with (
        NetLab(nodes, link) as lab,
        EmulatedCluster(lab, ranks, {"shapes": shapes, "kinds": kinds}) as cluster,
    ):
        yield cluster


def _full(found: ExchangeResults, settings: Config, cluster: EmulatedCluster) -> None:
    turns, alone = Turns(cluster), Turns(cluster)
    seconds = turns.take({key: ("step", {"name": key}) for key in _KINDS}, settings.rounds)
    local = alone.take({key: ("local", {"name": key}) for key in _KINDS}, settings.rounds)
    setting = f"{settings.rate_mbit:g} Mbit/s, {settings.ranks} ranks"
    found.rows += [
        replace(
            _row(f"Full exchange: {setting}", key, turns, seconds[key], local[key]),
            advice=key,
            setting=setting,
        )
        for key in _KINDS
    ]
    for key, other in _OVER.items():
        found.figures[key] = ratio(seconds["gtopk"], seconds[other])
    one_core = [
        cluster.ask("core", only=0, name="gtopk", density=settings.density)[0]["seconds"]
        for _ in range(settings.rounds + 1)
    ][1:]
    found.figures["local_ms"] = median([1000 * elapsed for elapsed in one_core], "ms")
    memory = [
        cluster.ask("memory", only=0, density=settings.density)[0]
        for _ in range(settings.rounds + 1)
    ][1:]
    found.figures["select_over_memory_limit"] = ratio(
        [turn["select_s"] for turn in memory], [turn["add_s"] for turn in memory]
    )


def _alone(found: ExchangeResults, settings: Config, load: Load, cluster: EmulatedCluster) -> None:
    cluster.lab.limit(Link(settings.alone_mbit))
    turns = Turns(cluster)
    size = {"elements": load.elements, "density": settings.density}
    seconds = turns.take(
        {key: ("agree", {"name": key, **size}) for key in _SPARSE}, settings.rounds
    )
    part = f"Communication alone: {settings.alone_mbit:g} Mbit/s, {cluster.ranks} ranks"
    # Without selection and error feedback this is no full exchange: no advice rests on it.
    found.rows += [_row(part, key, turns, seconds[key]) for key in _SPARSE]
    figure = f"gtopk_over_topk_p{cluster.ranks}"
    found.figures[figure] = ratio(seconds["gtopk"], seconds["topk"])


def _fusion(found: ExchangeResults, settings: Config, load: Load, cluster: EmulatedCluster) -> None:
    """Keep the figures of the pair where fused does worst."""
    pairs = [
        exchange_rows.measure(cluster, load, pair, settings.trials, settings.rounds)
        for pair in settings.pairs
    ]
    for pair in pairs:
        found.rows += pair.rows
        found.notes.append(pair.note)
    over_best, over_zero0 = [pair.over_best for pair in pairs], [pair.over_zero0 for pair in pairs]
    found.figures["fused_over_best"] = min(over_best, key=lambda figure: figure.value)
    found.figures["fused_over_zero0"] = min(over_zero0, key=lambda figure: figure.value)


def _hierarchical(found: ExchangeResults, settings: Config, load: Load) -> None:
    flat, levels = "flat ring", "hierarchical"
    kinds = {
        flat: _KINDS[_DENSE],
        levels: {"kind": "hierarchical", "ranks_per_node": _RANKS_PER_NODE},
    }
    ranks, size = _NODES * _RANKS_PER_NODE, 4 * load.elements
    # A ring over all ranks leaves and enters each node once, whatever number of ranks it has.
    crossing = {flat: ring_bytes(size, ranks), levels: ring_bytes(size, _NODES)}
    with _cluster(settings, _NODES, ranks, load, kinds) as cluster:
        turns = Turns(cluster)
        seconds = turns.take({key: ("step", {"name": key}) for key in kinds}, settings.rounds)
        rate = cluster.lab.link.bytes_per_s
        setting = f"{settings.rate_mbit:g} Mbit/s, {_NODES} nodes of {_RANKS_PER_NODE} ranks"
        found.rows += [
            ExchangeRow(
                f"Two levels: {setting}",
                key,
                seconds[key],
                sent_bytes=turns.mean(key, "sent"),
                wire_bytes=turns.mean(key, "wire"),
                floor_s=crossing[key] / rate,
                advice="hierarchical" if key == levels else "",
                setting=setting,
            )
            for key in kinds
        ]
    found.figures["hierarchical_over_flat"] = ratio(seconds[levels], seconds[flat])


def _row(
    part: str, key: str, turns: Turns, seconds: list[float], local_s: list[float] | None = None
) -> ExchangeRow:
    """Return the row of an exchange whose ranks have a node each."""
    sent = turns.mean(key, "sent")
    return ExchangeRow(
        part,
        _NAMES.get(key, key),
        seconds,
        local_s or (),
        sent,
        turns.mean(key, "wire"),
        sent / turns.cluster.lab.link.bytes_per_s,
    )


_WIDTH = 150
"""Characters of a line that holds the table."""

SMALLEST = (
    "model=test_resnet",
    "ranks=2",
    "alone_ranks=[2]",
    "rounds=2",
    "trials=2",
    "rate_mbit=1000",
    "pairs=[{rate_mbit: 1000, backward_s: 0.01}]",
)


def run(settings: Config) -> Result:
    """Measure, and write OUT/exchange.md, which to take when on top, and OUT/exchange.png.

    After Ctrl-C the whole parts so far are returned, marked as partial.
    """
    require()
    from rich.console import Console

    from skindx_bench.cluster.exchange_rows import markdown, plot, tables
    from skindx_bench.cluster.gradient_load import load_of

    load = load_of(settings.model)
    settings.out.mkdir(parents=True, exist_ok=True)  # better refused now than after the rounds
    found = ExchangeResults()
    with kept_when_stopped("exchanges were timed") as stopped:
        measure(settings, load, found)
    if found.rows:
        write_text(settings.out / "exchange.md", f"{choice(found.rows)}\n{markdown(found.rows)}")
        plot(settings.out / "exchange.png", found.rows)
    console = Console()
    console.width = max(console.width, _WIDTH)
    console.print(*tables(found.rows), sep="\n")
    return Result(
        "exchange",
        found.figures,
        notes=(*_notes(settings, load.elements), *found.notes),
        models={f"{row.part}: {row.name}": row.to_dict() for row in found.rows},
        partial=stopped.partial,
    )


def _notes(settings: Config, elements: int) -> tuple[str, ...]:
    k = math.ceil(settings.density * elements)
    return (
        f"{settings.model}'s {elements:,} gradients (fp32, synthetic: cubes of normal numbers), "
        f"density {settings.density:g} ({k:,} elements of 8 bytes); one rank a network namespace, "
        "gloo over TCP, each link limited both ways by tc tbf (burst about 1 ms of the rate). "
        "Times are those of the slowest rank after a barrier, in ms: median [25 %, 75 %] of "
        "interleaved rounds.",
        "Total: the whole exchange, selection and error feedback included. Local: the same work of "
        "all ranks at once, with what came over the wires played back from memory. Network: the "
        "difference, round by round. local_ms: selection and the merges of 4 ranks, alone on one "
        "core. select_over_memory_limit: an addition in place by torch over the same memory / the "
        "pass that adds the residual and finds the largest elements. Wire floor: counted bytes / "
        "rate. On a link: by the interfaces' own counters, "
        "headers and acknowledgements included; a rank's own count also has what stays inside its "
        "node.",
        "All ranks share this machine's cores: local times are longer than on a core of their own, "
        "at 8 ranks and more the times of small messages are the processor's rather than the "
        "network's, and 10 Gbit/s is out of reach of two cores. Links have no latency of their own "
        "(no netem).",
    )
