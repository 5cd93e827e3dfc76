"""A plan of a trace and a cluster alone: no dataset, no settings, no torch.

A cluster may be a preset from data sheets: alpha is the latency of one message between two
processes of a training framework, of the order that the makers and the public measurements of
collectives show; beta is the nominal rate less a tenth for headers.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from skindx.core.cost.cluster import Cluster, Link, Links, only_ranks
from skindx.core.cost.profile import Profiles
from skindx.core.errors import UserError
from skindx.plan.estimate import Machine
from skindx.plan.plan import Plan, make
from skindx.plan.search import PlanLimits
from skindx.plan.strategies import PlannedMember, Workload

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
            f"{words[:80]!r} is no file and no preset; give a cluster.yaml, or {FORM}. Networks: "
            f"{', '.join(BETWEEN)}; inside a node: {', '.join(INSIDE)}."
        )
    network = match["network"]
    nodes, ranks = int(match["nodes"] or 1), int(match["ranks"] or 1)
    if network in INSIDE:  # one node alone: nvlink:8
        nodes, ranks, inside = 1, nodes * ranks, INSIDE[network]
    else:
        inside = INSIDE[match["inside"] or "memory"]
    if nodes < 1 or ranks < 1:
        raise UserError(f"{words!r} has no ranks; a cluster needs one node of one rank or more.")
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
"""Bytes of a file's name."""


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
    """Images of a rank, where these are others than measured."""


def plan_of_trace(request: PlanRequest) -> Plan:
    """Price a step of a trace's first network; each rank has its batch. Raises UserError."""
    if request.trace is None or request.cluster is None:
        raise UserError(
            "a plan needs CONFIG and DATA, or --trace and --cluster: give `skindx plan make CONFIG "
            "DATA`, or the file of `skindx plan measure` as --trace and a preset such as 10gbe:8 "
            "(or the file of `skindx bench network`) as --cluster."
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
