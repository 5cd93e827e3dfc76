"""The public measurements of B-Caffe: GoogLeNet on 2, 4 and 8 nodes, message by message."""

from dataclasses import dataclass
from pathlib import Path

from skindx.core.cost.cluster import Cluster, Collective, Link
from skindx.core.cost.collectives import fit
from skindx.core.cost.network import Network
from skindx.plan.logged_runs import Logged, overhead_of, read_runs
from skindx.plan.public_traces import read_allreduce

LOGS = (("tmp2comm", 2), ("tmp4comm", 4), ("tmp4ocomm", 4), ("tmp8comm", 8), ("tmp8ocomm", 8))
"""Log and nodes; a log holds one run or two."""

CALIBRATION = "tmp4comm/0"
"""The one run that calibrates: of those whose messages go out tensor by tensor, and so are the most
and of the most sizes, the one on the most nodes."""


@dataclass(frozen=True)
class Row:
    """A run on so many nodes."""

    nodes: int
    run: Logged


def rows(folder: Path) -> list[Row]:
    """Return all runs on several nodes."""
    return [Row(nodes, run) for log, nodes in LOGS for run in read_runs(folder / f"{log}.log")]


def errors(folder: Path, calibration: str = CALIBRATION) -> dict[str, float]:
    """Return the relative errors of all other runs, by run.

    What an all-reduce takes alone on 2, 4 and 8 nodes was measured apart. What training adds to it
    is learnt from one run, on one number of nodes, and holds for all.
    """
    known = {row.run.name: row for row in rows(folder)}
    chosen = known.pop(calibration)
    lines = {nodes: collective_alone(folder, nodes) for _, nodes in LOGS}
    overhead = overhead_of(chosen.run, network(lines[chosen.nodes], alone=True))
    return {
        name: row.run.predicted_s(network(lines[row.nodes], overhead)) / row.run.measured_s - 1
        for name, row in known.items()
    }


def network(known: Collective, overhead: Link | None = None, *, alone: bool = False) -> Network:
    """Return a network of which this all-reduce is known."""
    cluster = Cluster(nodes=known.nodes, backend="mpi", collectives=(known,), overhead=overhead)
    return Network(cluster, alone=alone)


def collective_alone(folder: Path, nodes: int) -> Collective:
    """Return what an all-reduce among so many nodes takes with the machines to itself."""
    line = fit(read_allreduce(folder / f"allreduce{nodes}.log"))
    return Collective(
        collective="all_reduce",
        nodes=nodes,
        alpha_s=line.alpha_s,
        beta_s_per_byte=line.beta_s_per_byte,
    )
