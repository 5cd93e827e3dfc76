"""The parts of the exchange bench, and the emulated cluster that each part needs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from skindx.comm.fabric import ring_bytes
from skindx_bench.exchange import fusion
from skindx_bench.exchange.cluster import Cluster
from skindx_bench.exchange.load import Load
from skindx_bench.exchange.rows import Row, Turns
from skindx_bench.exchange.settings import Config
from skindx_bench.harness.clock import Figure, median, ratio
from skindx_bench.harness.netlab import Link, NetLab

_DENSE = fusion.EXCHANGE
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
class Found:
    """The results of all parts; each part adds its own."""

    figures: dict[str, Figure] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measure(settings: Config, load: Load, found: Found) -> None:
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
) -> Iterator[Cluster]:
    """Build a lab with its ranks; without a load they have a gradient of one element."""
    shapes = load.shapes if load else {"nothing": (1,)}
    density = {"density": settings.density}
    kinds = {key: kind | (density if key in _SPARSE else {}) for key, kind in kinds.items()}
    link = Link(settings.rate_mbit)
    with (
        NetLab(nodes, link) as lab,
        Cluster(lab, ranks, {"shapes": shapes, "kinds": kinds}) as cluster,
    ):
        yield cluster


def _full(found: Found, settings: Config, cluster: Cluster) -> None:
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


def _alone(found: Found, settings: Config, load: Load, cluster: Cluster) -> None:
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


def _fusion(found: Found, settings: Config, load: Load, cluster: Cluster) -> None:
    """Keep the figures of the pair where fused does worst."""
    pairs = [
        fusion.measure(cluster, load, pair, settings.trials, settings.rounds)
        for pair in settings.pairs
    ]
    for pair in pairs:
        found.rows += pair.rows
        found.notes.append(pair.note)
    over_best, over_zero0 = [pair.over_best for pair in pairs], [pair.over_zero0 for pair in pairs]
    found.figures["fused_over_best"] = min(over_best, key=lambda figure: figure.value)
    found.figures["fused_over_zero0"] = min(over_zero0, key=lambda figure: figure.value)


def _hierarchical(found: Found, settings: Config, load: Load) -> None:
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
            Row(
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
) -> Row:
    """Return the row of an exchange whose ranks have a node each."""
    sent = turns.mean(key, "sent")
    return Row(
        part,
        _NAMES.get(key, key),
        seconds,
        local_s or (),
        sent,
        turns.mean(key, "wire"),
        sent / turns.cluster.lab.link.bytes_per_s,
    )
