"""A plan: what was chosen, what it takes, what holds it back, and what would change it.

Its advice follows the guidelines for workers and batch of Zou et al. (arXiv 1709.06622).
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from skindx.core.cost.pricing import Load, Strategy
from skindx.core.cost.profile import Profile
from skindx.core.errors import UserError
from skindx.core.text import seconds
from skindx_methods.plan.choices import Choice, PlannedMember, Workload
from skindx_methods.plan.cluster import Cluster, ClusterNetwork, Link, Links
from skindx_methods.plan.estimate import Estimate, Machine, PlanOutcome, estimate, memory_of
from skindx_methods.plan.interval import is_surely_slower
from skindx_methods.plan.profiles import Profiles, trace_of
from skindx_methods.plan.search import PlanLimits, SearchResult, search

PAPER = (
    "Guidelines for workers and batches | Zou et al., Distributed Training Large-Scale Deep "
    "Architectures, arXiv 1709.06622, 2017 | methods/tests/test_plan_report.py | "
    "docs/measured/plan.json"
)


@dataclass(frozen=True)
class Guideline:
    """A piece of advice with the formula that it comes from."""

    what: str
    answer: str
    formula: str


def ranks_that_pay(overhead_ratio: float, wanted: float) -> int:
    """Return the most ranks whose efficiency is at least `wanted`; 0: there is no limit.

    From e = (1 + R) / (1 + G R): G = (1 + R - e) / (e R).
    """
    if overhead_ratio <= 0:
        return 0
    return max(1, math.floor((1 + overhead_ratio - wanted) / (wanted * overhead_ratio) + 1e-9))


EFFICIENCY = 0.8
"""Efficiency in the guideline for how many ranks pay."""

_ROUNDING = 1e-6
"""Choices whose times differ by less, relatively, are equally fast."""


@dataclass(frozen=True)
class Plan:
    """All that `skindx plan make` reports."""

    workload: Workload
    machine: Machine
    limits: PlanLimits
    search_result: SearchResult
    bottleneck: str
    changes: tuple[str, ...]
    advice: tuple[Guideline, ...]
    notes: tuple[str, ...]

    @property
    def chosen(self) -> PlanOutcome:
        """The plan itself."""
        return self.search_result.chosen


def make(
    workload: Workload, machine: Machine, limits: PlanLimits, given: Choice | None = None
) -> Plan:
    """Search, and say what follows. Raises UserError."""
    result = search(workload, machine, limits, given)
    profile, chosen = workload.members[0].profile, result.chosen.first
    return Plan(
        workload,
        machine,
        limits,
        result,
        _bottleneck(chosen),
        _changes(profile, chosen, machine),
        _advice(profile, chosen, machine),
        _notes(workload, machine, result, limits),
    )


def _bottleneck(chosen: Estimate) -> str:
    parts = chosen.step.parts
    name = max(parts, key=parts.__getitem__)
    share = parts[name] / chosen.step_s if chosen.step_s else 0.0
    if name in ("forward", "backward", "update"):
        share = sum(parts[key] for key in ("forward", "backward", "update")) / chosen.step_s
        return (
            f"Computing holds it back: {percent(share)} of a step; communication that it does "
            f"not hide is {percent(parts['communicate'] / chosen.step_s)}."
        )
    if name == "communicate":
        local = min(1.0, chosen.schedule.local_s / max(parts[name], 1e-12))
        where = "the exchange's own work on the cores" if local > 0.5 else "the network"
        return f"Communication holds it back: {percent(share)} of a step, mostly {where}."
    return f"Reading images holds it back: {percent(share)} of a step waits for them."


def _changes(profile: Profile, chosen: Estimate, machine: Machine) -> tuple[str, ...]:
    """Say what a faster network, another node and a smaller model would change."""
    choice, now_s = chosen.choice, chosen.step_s
    sentences = []
    if choice.ranks > 1:
        fast = replace(machine, cluster=faster(machine.cluster, 2))
        if step_s := _step_s(profile, choice, fast):
            sentences.append(
                f"A network twice as fast: a step takes {seconds(step_s)} instead of "
                f"{seconds(now_s)} ({percent(now_s / step_s - 1, signed=True)} images a second)."
            )
    more = replace(
        choice, nodes=choice.nodes + 1, batch=choice.batch * (choice.nodes + 1) // choice.nodes
    )
    if step_s := _step_s(profile, more, machine):
        gain = more.batch / step_s / (choice.batch / now_s) - 1
        sentences.append(
            f"One more node, with as many images a rank: {percent(gain, signed=True)} images a "
            f"second, where the node is {percent(1 / choice.nodes, signed=True)} of the machines."
        )
    if step_s := _step_s(_half(profile), choice, machine):
        sentences.append(
            f"A model of half the operations and parameters: a step takes {seconds(step_s)} "
            f"({percent(now_s / step_s - 1, signed=True)} images a second)."
        )
    return tuple(sentences)


def _step_s(profile: Profile, choice: Choice, machine: Machine) -> float | None:
    """Return what a step would take; None for what cannot be, or what nothing is known of."""
    try:
        return estimate(profile, choice, machine).step_s
    except UserError:
        return None


def _half(profile: Profile) -> Profile:
    """Return a profile of half the time and half the parameters."""
    layers = tuple(
        layer.model_copy(
            update={
                "forward_s": (layer.forward_s or 0.0) / 2,
                "backward_s": (layer.backward_s or 0.0) / 2,
                "shapes": (),
                "parameter_bytes": layer.parameter_bytes // 8 * 4,
            }
        )
        for layer in profile.layers
    )
    return profile.model_copy(update={"layers": layers, "update_s": profile.update_s / 2})


def faster(cluster: Cluster, factor: float) -> Cluster:
    """Return a cluster whose links and collectives carry `factor` times as many bytes a second."""
    links = cluster.links.model_copy(
        update={
            key: link.model_copy(update={"beta_s_per_byte": link.beta_s_per_byte / factor})
            for key in ("between", "inside")
            if (link := getattr(cluster.links, key)) is not None
        }
    )
    collectives = tuple(
        known.model_copy(
            update={
                "beta_s_per_byte": known.beta_s_per_byte / factor,
                "points": tuple(
                    (size, min(seconds, known.alpha_s) + max(0.0, seconds - known.alpha_s) / factor)
                    for size, seconds in known.points
                ),
            }
        )
        for known in cluster.collectives
    )
    return cluster.model_copy(update={"links": links, "collectives": collectives})


def _advice(profile: Profile, chosen: Estimate, machine: Machine) -> tuple[Guideline, ...]:
    advice = []
    ranks = max(2, chosen.choice.ranks)
    overhead = chosen.step.parts["communicate"] + chosen.step.parts["read"]
    busy_s = max(1e-12, chosen.step_s - overhead)
    ratio = (
        overhead / busy_s / ranks if chosen.choice.ranks > 1 else chosen.step.parts["read"] / busy_s
    )
    pays = ranks_that_pay(ratio, EFFICIENCY)
    advice.append(
        Guideline(
            f"ranks that pay at an efficiency of {percent(EFFICIENCY)}",
            "as many as there are: nothing is left unhidden" if not pays else f"{pays}",
            f"(1 + R) / (1 + G R) ≥ {EFFICIENCY:g} with R = {ratio:.4f}, the overhead of a rank "
            "over its computing",
        )
    )
    limit = machine.cluster.memory_gb
    if limit is not None:
        share = (
            limit * 1e9 / (chosen.choice.ranks_per_node if machine.profiles.device == "cpu" else 1)
        )
        network = machine.network(chosen.choice.nodes, chosen.choice.ranks_per_node)
        load = Load(trace_of(profile), profile, machine.profiles.device, chosen.choice.piece)
        most = largest_batch(
            chosen.choice.strategy, load, network, machine.profiles.base_bytes, share
        )
        advice.append(
            Guideline(
                "images a rank with the largest throughput that fits",
                f"{most}",
                f"features(X) + 3 x parameters + workspace ≤ {share / 1e9:.1f} GB",
            )
        )
    return tuple(advice)


def _notes(
    workload: Workload, machine: Machine, result: SearchResult, limits: PlanLimits
) -> tuple[str, ...]:
    cluster, profiles = machine.cluster, machine.profiles
    notes = []
    if cluster.source == "preset":
        notes.append(f"The network is a preset ({cluster.name}), from data sheets, not measured.")
    elif cluster.source == "given":
        notes.append("The times of the network were given by hand; they were not measured here.")
    if profiles.source != "measured":
        notes.append("Computing times are another program's, as they stand in the trace.")
    elif profiles.device == "cpu":
        notes.append("The trace is of a processor, so the times of a step hold for no GPU.")
    together = result.chosen.choice.ranks_per_node
    if profiles.source == "measured" and profiles.ranks == 1 < together:
        notes.append(
            f"The trace is of one rank alone, and {together} ranks of a node share its memory and "
            f"cores; measure again with --ranks {together}."
        )
    if not result.chosen.first.schedule.measured and result.chosen.choice.ranks > 1:
        notes.append(
            "The chosen exchange was not measured among so many ranks: it is derived from links."
        )
    if result.chosen.first.memory.measured is False:
        notes.append("Memory is computed from the layers, not measured.")
    if cluster.corrections:
        learnt = ", ".join(
            f"{part} x {known.factor:.3f} ({known.runs} run{'s' if known.runs > 1 else ''})"
            for part, known in cluster.corrections.items()
        )
        notes.append(f"Corrected by what earlier runs took: {learnt}.")
    if result.refused:
        notes.append(f"{result.refused} of the choices do not fit the memory.")
    if result.chosen.beyond:
        notes.append(f"Beyond what was measured: {'; '.join(result.chosen.beyond)}.")
    return (*notes, *_of_limits(result, limits), *workload.unpriced)


def _of_limits(result: SearchResult, limits: PlanLimits) -> list[str]:
    """Say what the limits let through, and what they keep back."""
    notes = _overlap(result, limits)
    if limits.hours is not None and result.chosen.seconds > limits.hours * 3600:
        notes.append(f"No choice takes less than {limits.hours:g} hours; this is the fastest.")
    if limits.money is not None:
        if result.chosen.money is None:
            notes.append("The cluster has no price_per_node_hour, so --money decides nothing.")
        elif result.chosen.money > limits.money:
            notes.append(f"No choice costs less than {limits.money:g}; this is the cheapest.")
    best = result.every[0]
    kept_back = best.choice.strategy.lossy and not (limits.lossy or limits.strategy)
    ratio = result.chosen.score_s / max(best.score_s, 1e-12)
    if kept_back and is_surely_slower(result.chosen, best, ratio):
        notes.append(
            f"{best.choice.label} on {best.choice.ranks} ranks would be faster "
            f"({percent(ratio - 1, signed=True)}), but it changes "
            "the gradient; --lossy lets it be chosen."
        )
    return notes


def _overlap(result: SearchResult, limits: PlanLimits) -> list[str]:
    """Say which choice is better by less than what is known of it."""
    best, chosen = result.fastest, result.chosen
    faster, cheaper = chosen.score_s / best.score_s - 1, 0.0
    if limits.hours is not None and chosen.seconds:
        cheaper = 1 - best.nodes * best.seconds / (chosen.nodes * chosen.seconds)
    if max(faster, cheaper) < _ROUNDING:
        return []
    gain = (
        f"take {percent(cheaper)} fewer hours of nodes"
        if cheaper
        else f"be {percent(faster)} faster"
    )
    return [
        f"{best.choice.label} on {best.choice.ranks} rank{'s' * (best.choice.ranks > 1)} is "
        f"predicted to {gain}, which is within what the prediction can be wrong by: the plan "
        "with the fewest settings that differ from the defaults is taken."
    ]


# A plan of a trace and a cluster alone: no dataset, no settings, no torch.
#
# A cluster may be a preset from data sheets: alpha is the latency of one message between two
# processes of a training framework, of the order that the makers and the public measurements of
# collectives show; beta is the nominal rate less a tenth for headers.

_GBIT = 8 / 1e9 / 0.9
"""Seconds a byte at a nominal Gbit/s, a tenth of it lost to headers and acknowledgements."""

SPREAD = 0.35
"""Standard deviation over the mean that a network from a data sheet is believed to have."""

BETWEEN = {
    "1gbe": Link(alpha_s=1e-4, beta_s_per_byte=_GBIT, spread=SPREAD),
    "10gbe": Link(alpha_s=5e-5, beta_s_per_byte=_GBIT / 10, spread=SPREAD),
    "25gbe": Link(alpha_s=4e-5, beta_s_per_byte=_GBIT / 25, spread=SPREAD),
    "ib100": Link(alpha_s=5e-6, beta_s_per_byte=_GBIT / 100, spread=SPREAD),
}
"""Name -> link between nodes."""

INSIDE = {
    "pcie": Link(alpha_s=1e-5, beta_s_per_byte=1 / 12e9, spread=SPREAD),
    "nvlink": Link(alpha_s=5e-6, beta_s_per_byte=1 / 150e9, spread=SPREAD),
    "memory": Link(alpha_s=3e-5, beta_s_per_byte=1 / 3e9, spread=SPREAD),
}
"""Name -> link between two ranks of a node: PCIe 3 x16, NVLink 3, and gloo over loopback."""

FORM = "NETWORK:NODESxRANKS, with +INSIDE where a node has several ranks: 10gbe:8x4+nvlink"
_PRESET = re.compile(
    r"(?P<network>[a-z0-9]+)(?::(?P<nodes>\d{1,9})(?:x(?P<ranks>\d{1,9}))?)?(?:\+(?P<inside>\w+))?"
)


def preset(words: str) -> Cluster:
    """Return the cluster that some words name. Raises UserError for words that name none."""
    match = _PRESET.fullmatch(words.lower())
    names = (*BETWEEN, *INSIDE)
    if not match or match["network"] not in names or match["inside"] not in (None, *INSIDE):
        raise UserError(
            f"{words[:80]!r} is neither a file nor a preset; give --cluster a cluster.yaml, or "
            f"{FORM}. Networks: {', '.join(BETWEEN)}; inside a node: {', '.join(INSIDE)}."
        )
    network = match["network"]
    nodes, ranks = int(match["nodes"] or 1), int(match["ranks"] or 1)
    if network in INSIDE:  # one node alone: nvlink:8
        nodes, ranks, inside = 1, nodes * ranks, INSIDE[network]
    else:
        inside = INSIDE[match["inside"] or "memory"]
    if nodes < 1 or ranks < 1:
        raise UserError(f"{words!r} has no ranks; give --cluster at least one node and one rank.")
    gpus = match["inside"] in ("nvlink", "pcie") or network in ("nvlink", "pcie")
    made = {
        "name": words.lower(),
        "source": "preset",
        "nodes": nodes,
        "ranks_per_node": ranks,
        "backend": "nccl" if gpus or network == "ib100" else "gloo",
        "links": Links(between=BETWEEN.get(network), inside=inside),
    }
    return Cluster.parse(made, origin=f"preset {words!r}", expand=False)


_LONGEST_NAME = 255
"""Most bytes of a file's name."""


@dataclass(frozen=True)
class PlanRequest:
    """A request beside settings and dataset."""

    limits: PlanLimits
    trace: Path | None = None
    cluster: str | None = None
    """A file, or the name of a preset."""
    nodes: int | None = None
    ranks_per_node: int | None = None
    batch: int | None = None
    """Images of a rank, where these are not as measured."""


def plan_of_trace(request: PlanRequest) -> Plan:
    """Price a step of a trace's first network; each rank has its batch. Raises UserError."""
    if request.trace is None or request.cluster is None:
        raise UserError(
            "a plan needs CONFIG and DATA, or --trace and --cluster; run `skindx plan make "
            "CONFIG DATA`, or give --trace the file of `skindx plan measure` and --cluster a "
            "preset such as 10gbe:8 or the file of `skindx bench network`."
        )
    machine = machine_of(Profiles.read(request.trace), read_cluster(request.cluster), request)
    profile = machine.profiles.networks[0]
    member = PlannedMember(profile.name, profile, request.batch or profile.batch)
    return make(Workload((member,), weak=True), machine, request.limits)


def machine_of(profiles: Profiles, cluster: Cluster, request: PlanRequest) -> Machine:
    """Return the part of a cluster that is to be used."""
    cluster = only_ranks(
        cluster, request.nodes or cluster.nodes, request.ranks_per_node or cluster.ranks_per_node
    )
    return Machine(profiles, cluster)


def read_cluster(words: str) -> Cluster:
    """Read a cluster file, or return the preset of that name. Raises UserError."""
    path = Path(words)
    is_path = path.suffix in (".yaml", ".yml") or "/" in words
    if is_path or (len(words.encode()) <= _LONGEST_NAME and path.exists()):
        return Cluster.read(path)
    return preset(words)


def largest_batch(
    strategy: Strategy, load: Load, network: ClusterNetwork, base_bytes: int, limit_bytes: float
) -> int:
    """Return the most images of one rank that fit; 0: not even one."""

    def fits(batch: int) -> bool:
        result = memory_of(strategy, load, network, batch, base_bytes, checkpointing=False)
        return result.peak_bytes <= limit_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < 1 << 20:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def only_ranks(cluster: Cluster, nodes: int, ranks_per_node: int) -> Cluster:
    """Return a part of a cluster. Raises UserError for more than there is."""
    if nodes > cluster.nodes or ranks_per_node > cluster.ranks_per_node:
        raise UserError(
            f"--nodes {nodes} with --ranks-per-node {ranks_per_node} is more than {cluster.name} "
            f"has ({cluster.nodes} nodes of {cluster.ranks_per_node} ranks); lower --nodes or "
            "--ranks-per-node, or change the cluster file."
        )
    return cluster.model_copy(update={"nodes": nodes, "ranks_per_node": ranks_per_node})


def percent(share: float, *, signed: bool = False) -> str:
    """Return a share: 12 %, or +12 %."""
    return f"{100 * share:{'+' if signed else ''}.0f} %"
