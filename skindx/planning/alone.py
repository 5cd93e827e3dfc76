"""A plan of a trace and a cluster alone: no dataset, no settings, no torch."""

from dataclasses import dataclass
from pathlib import Path

from skindx.core.errors import UserError
from skindx.planning.cluster import Cluster, only_ranks
from skindx.planning.estimate import Machine, as_measured
from skindx.planning.other_device import on_other_device
from skindx.planning.plan import Plan, make
from skindx.planning.presets import preset
from skindx.planning.profile import Profiles
from skindx.planning.public_traces import read_profiles
from skindx.planning.search import Limits
from skindx.planning.workload import Member, Workload

_LONGEST_NAME = 255
"""Bytes of a file's name."""


@dataclass(frozen=True)
class Asked:
    """A request beside settings and dataset."""

    limits: Limits
    trace: Path | None = None
    cluster: str | None = None
    """A file, or the name of a preset."""
    nodes: int | None = None
    ranks_per_node: int | None = None
    batch: int | None = None
    """Images of a rank: those of the step that a foreign trace shows, or others than measured."""
    one_rank_s: float | None = None
    devices: tuple[Path, Path] | None = None
    """Files of `skindx bench devices`: of the device of the trace, and of the one to plan for."""


def plan_of_trace(asked: Asked) -> Plan:
    """Price a step of a trace's first network; each rank has its batch. Raises UserError."""
    if asked.trace is None or asked.cluster is None:
        raise UserError(
            "give CONFIG and DATA, or --trace and --cluster; `skindx plan measure` writes the "
            "first, `skindx plan network` the second."
        )
    machine = machine_of(read_profiles(asked.trace), read_cluster(asked.cluster), asked)
    profile = machine.profiles.networks[0]
    if asked.batch and machine.profiles.source != "measured":
        profile = profile.model_copy(update={"batch": asked.batch})
    member = Member(profile.name, profile, asked.batch or profile.batch)
    return make(Workload((member,), weak=True), machine, asked.limits)


def machine_of(profiles: Profiles, cluster: Cluster, asked: Asked) -> Machine:
    """Return the part of a cluster that is to be used, with times as measured on one rank."""
    cluster = only_ranks(
        cluster, asked.nodes or cluster.nodes, asked.ranks_per_node or cluster.ranks_per_node
    )
    if asked.devices is not None:
        profiles = on_other_device(profiles, *asked.devices)
    if asked.one_rank_s is not None:
        cluster = Cluster.parse(
            {**cluster.model_dump(mode="json"), "one_rank_s": asked.one_rank_s},
            origin="--one-rank-s",
        )
    if cluster.one_rank_s is not None:
        networks = tuple(as_measured(network, cluster.one_rank_s) for network in profiles.networks)
        profiles = profiles.model_copy(update={"networks": networks})
    return Machine(profiles, cluster)


def read_cluster(words: str) -> Cluster:
    """Read a cluster file, or return the preset of that name. Raises UserError."""
    path = Path(words)
    is_path = path.suffix in (".yaml", ".yml") or "/" in words
    if is_path or (len(words.encode()) <= _LONGEST_NAME and path.exists()):
        return Cluster.read(path)
    return preset(words)
