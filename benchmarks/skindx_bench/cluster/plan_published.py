"""Published measurements, and what a plan says of them.

B-Caffe: GoogLeNet on 2, 4 and 8 nodes, message by message. ResNet-50 on 10 Gbit Ethernet and
InfiniBand: HKBU-HPML/ddl-benchmarks, results of 2020-05-29 (64 images a GPU). Times of an
all-reduce: the lines alpha + beta x bytes of MG-WFBP's authors for these clusters (mgwfbp/ in that
repository). Layers: PipeDream's profile of ResNet-50, scaled to the published speed of one GPU.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

from skindx.core.cost.cluster import Cluster, Collective, Link
from skindx.core.cost.collectives import fit
from skindx.core.cost.network import Network
from skindx.metrics.share_intervals import share_interval
from skindx.plan.choice import PlannedMember, Workload
from skindx.plan.logged_runs import Logged, overhead_of, read_runs
from skindx.plan.public_traces import read_allreduce, read_profiles
from skindx.plan.search import PlanLimits, search
from skindx.plan.trace_plan import PlanRequest, machine_of
from skindx_bench.cluster.plan_rows import PlannedRow
from skindx_bench.harness.result import Figure

LOGS = (("tmp2comm", 2), ("tmp4comm", 4), ("tmp4ocomm", 4), ("tmp8comm", 8), ("tmp8ocomm", 8))
"""Log and nodes; a log holds one run or two."""

CALIBRATION = "tmp4comm/0"
"""The one run that calibrates: of those whose messages go out tensor by tensor, and so are the most
and of the most sizes, the one on the most nodes."""


@dataclass(frozen=True)
class PublicRun:
    """A run on so many nodes."""

    nodes: int
    run: Logged


def rows(folder: Path) -> list[PublicRun]:
    """Return all runs on several nodes."""
    return [
        PublicRun(nodes, run) for log, nodes in LOGS for run in read_runs(folder / f"{log}.log")
    ]


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


IMAGES, ONE_GPU = 64, 253.1
"""Images of a GPU in a step, and how many one GPU alone trains in a second."""


@dataclass(frozen=True)
class Published:
    """One network: (alpha, beta) of an all-reduce by GPUs, and images a second of strategies."""

    lines: Mapping[int, tuple[float, float]]
    speeds: Mapping[str, Mapping[int, float]]


NETWORKS = {
    "10 Gbit Ethernet": Published(
        {
            8: (5.230272768511732e-4, 8.570746975492128e-10),
            16: (9.080981007148093e-4, 7.395651186836712e-10),
            32: (4.042923237e-3, 8.643300782166769e-10),
        },
        {
            "one-buffer": {8: 1282.28, 16: 2485.12, 32: 4920.82},
            "per-tensor": {8: 1795.74, 16: 3146.78, 32: 5113.18},
            "fused": {8: 1980.58, 16: 3784.98, 32: 6883.60},
        },
    ),
    "InfiniBand": Published(
        {
            4: (4.204298980348825e-5, 2.0589360830118177e-10),
            8: (9.75367204301171e-5, 3.0568230536676206e-10),
            16: (7.07510329770e-4, 4.0594787739537565e-10),
            32: (4.06320799962926e-4, 4.906985930966e-10),
        },
        {
            "one-buffer": {4: 920.28, 8: 1821.20, 16: 3602.90, 32: 7126.52},
            "per-tensor": {4: 1014.28, 8: 2017.12, 16: 3946.06, 32: 7326.56},
            "fused": {4: 1003.90, 8: 2001.72, 16: 3987.40, 32: 7876.46},
        },
    ),
}


def published_rows(traces: Path) -> list[PlannedRow]:
    """Return each published speed as a measured step beside the plan's."""
    profiles = read_profiles(traces / "pipedream_profiles" / "resnet50.graph.txt")
    found = []
    for name, known in NETWORKS.items():
        for strategy, speeds in known.speeds.items():
            for gpus, speed in speeds.items():
                alpha_s, beta = known.lines[gpus]
                cluster = Cluster(
                    name=name,
                    nodes=gpus,
                    backend="nccl",
                    collectives=(
                        Collective(
                            collective="all_reduce",
                            nodes=gpus,
                            alpha_s=alpha_s,
                            beta_s_per_byte=beta,
                        ),
                    ),
                    one_rank_s=IMAGES / ONE_GPU,
                )
                machine = machine_of(profiles, cluster, PlanRequest(PlanLimits()))
                profile = machine.profiles.networks[0]
                work = Workload((PlannedMember("resnet50", profile, profile.batch),), weak=True)
                first = search(work, machine, PlanLimits(strategy=strategy)).chosen.first
                measured_s = IMAGES * gpus / speed
                group = f"{name}, {gpus} GPUs"
                found.append(
                    PlannedRow(
                        "published", group, strategy, first.step_s, first.half_width, measured_s
                    )
                )
    return found


def published_figures(found: list[PlannedRow]) -> dict[str, Figure]:
    """Return for each network how many rows lie in their 90 % intervals, and how wide these are."""
    figures = {}
    for name, key in (("10 Gbit Ethernet", "ethernet"), ("InfiniBand", "infiniband")):
        own = [row for row in found if row.group.startswith(name)]
        share = share_interval([row.within for row in own], [row.group for row in own])
        figures[f"{key}_coverage"] = Figure(
            share.value, "of the steps", len(own), (share.low, share.high)
        )
        widths = [row.half_width for row in own]
        figures[f"{key}_half_width"] = Figure(
            median(widths), "of the prediction", len(own), (min(widths), max(widths))
        )
    return figures


def tcp_factor(folder: Path) -> Figure:
    """Return what messages of B-Caffe's runs took over the same all-reduces alone.

    The geometric mean over numbers of nodes, each the mean of its runs; its spread is that of one
    more run: none of the published rows above is looked at.
    """
    logs: dict[int, list[float]] = {nodes: [] for _, nodes in LOGS}
    for row in rows(folder):
        price = network(collective_alone(folder, row.nodes), alone=True).price("all_reduce")
        alone_s = sum(price(size).alone_s for size in row.run.sizes_bytes)
        logs[row.nodes].append(math.log(sum(row.run.seconds) / alone_s))
    every = [log for own in logs.values() for log in own]
    middle = fmean(fmean(own) for own in logs.values())
    apart = stdev(every) * math.sqrt(1 + 1 / len(every))
    return Figure(
        math.exp(middle), "×", len(every), (math.exp(middle - apart), math.exp(middle + apart))
    )
