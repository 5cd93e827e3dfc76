"""Fused against fixed groupings, during a backward pass that is emulated by waiting."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import Field

from skindx.comm.fabric import ring_bytes
from skindx.comm.grouping import GroupingCandidate, candidates, ddp_buckets, one_buffer, per_tensor
from skindx.core.cost.collectives import Cost, fit
from skindx.core.cost.profile import Trace
from skindx.core.settings_base import Settings
from skindx_bench.cluster.exchange_rows import ExchangeRow, Turns
from skindx_bench.cluster.gradient_load import Load
from skindx_bench.harness.cluster import EmulatedCluster
from skindx_bench.harness.netlab import Link
from skindx_bench.harness.result import Figure, ratio

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
