"""A plan of a trace and a cluster alone: no dataset, no settings, no torch."""

from pathlib import Path

from skindx.planning.cluster import Cluster, only_ranks
from skindx.planning.estimate import Machine, as_measured
from skindx.planning.plan import Plan, make
from skindx.planning.presets import preset
from skindx.planning.profile import Profiles
from skindx.planning.public_traces import read_profiles
from skindx.planning.search import Limits
from skindx.planning.workload import Member, Workload


def plan_of_trace(
    trace: Path,
    cluster: str,
    nodes: int | None,
    ranks_per_node: int | None,
    batch: int | None,
    one_rank_s: float | None,
    limits: Limits,
) -> Plan:
    """Price a step of each network of a trace; each rank has the batch of the trace. UserError."""
    machine = machine_of(read_profiles(trace), read_cluster(cluster), nodes, ranks_per_node, one_rank_s)
    members = tuple(
        Member(profile.name, profile, batch or profile.batch)
        for profile in machine.profiles.networks[:1]
    )
    return make(Workload(members, weak=True), machine, limits)


def machine_of(
    profiles: Profiles,
    cluster: Cluster,
    nodes: int | None,
    ranks_per_node: int | None,
    one_rank_s: float | None,
) -> Machine:
    """Return the part of a cluster that is to be used, with times as measured on one rank."""
    cluster = only_ranks(
        cluster, nodes or cluster.nodes, ranks_per_node or cluster.ranks_per_node
    )
    if one_rank_s is not None:
        cluster = Cluster.parse(
            {**cluster.model_dump(mode="json"), "one_rank_s": one_rank_s}, origin="--one-rank-s"
        )
    if cluster.one_rank_s is not None:
        networks = tuple(as_measured(each, cluster.one_rank_s) for each in profiles.networks)
        profiles = profiles.model_copy(update={"networks": networks})
    return Machine(profiles, cluster)


def read_cluster(words: str) -> Cluster:
    """Read a cluster file, or return the preset of that name. Raises UserError."""
    path = Path(words)
    if path.exists() or path.suffix in (".yaml", ".yml") or "/" in words:
        return Cluster.read(path)
    return preset(words)
