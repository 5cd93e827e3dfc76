"""Predictions of `skindx plan` against measurements: steps, memory, order, intervals.

Published ones: B-Caffe's GoogLeNet on 2, 4 and 8 nodes, message by message. ResNet-50 on 10 Gbit
Ethernet and InfiniBand: HKBU-HPML/ddl-benchmarks, results of 2020-05-29 (64 images a GPU). Times of
an all-reduce: the lines alpha + beta x bytes of MG-WFBP's authors for these clusters (mgwfbp/ in
that repository). Layers: PipeDream's profile, scaled to the published speed of one GPU.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

from skindx.core.cost.collectives import fit
from skindx.core.cost.profile import AtBatch, Profile, ProfiledLayer
from skindx.metrics.share_intervals import share_interval
from skindx_bench.cluster.gradient_load import load_of
from skindx_bench.cluster.plan_rows import Config, PlannedRow, figures
from skindx_bench.cluster.public_traces import (
    Logged,
    overhead_of,
    read_allreduce,
    read_pipedream,
    read_runs,
)
from skindx_bench.harness.netlab import require
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.harness.result import median as figure_of
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.cluster import Cluster, ClusterNetwork, Collective, Link
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.interval import half_width
from skindx_methods.plan.plan import make, preset
from skindx_methods.plan.profiles import Profiles
from skindx_methods.plan.search import PlanLimits, search

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


def public_runs(folder: Path) -> list[PublicRun]:
    """Return all runs on several nodes."""
    return [
        PublicRun(nodes, run) for log, nodes in LOGS for run in read_runs(folder / f"{log}.log")
    ]


def errors(folder: Path, calibration: str = CALIBRATION) -> dict[str, float]:
    """Return the relative errors of all other runs, by run.

    What an all-reduce takes alone on 2, 4 and 8 nodes was measured apart. What training adds to it
    is learnt from one run, on one number of nodes, and holds for all.
    """
    known = {row.run.name: row for row in public_runs(folder)}
    chosen = known.pop(calibration)
    lines = {nodes: collective_alone(folder, nodes) for _, nodes in LOGS}
    overhead = overhead_of(chosen.run, network(lines[chosen.nodes]))
    return {
        name: row.run.predicted_s(network(lines[row.nodes], overhead)) / row.run.measured_s - 1
        for name, row in known.items()
    }


def network(known: Collective, overhead: Link | None = None) -> ClusterNetwork:
    """Return a network of which this all-reduce is known."""
    cluster = Cluster(nodes=known.nodes, backend="mpi", collectives=(known,), overhead=overhead)
    return ClusterNetwork(cluster)


def collective_alone(folder: Path, nodes: int) -> Collective:
    """Return what an all-reduce among so many nodes takes with the machines to itself."""
    line = fit(read_allreduce(folder / f"allreduce{nodes}.log"))
    return Collective(
        collective="all_reduce",
        nodes=nodes,
        alpha_s=line.alpha_s,
        beta_s_per_byte=line.beta_s_per_byte,
    )


TCP_FACTOR, TCP_SPREAD = 1.53, 0.17
"""What a message takes within a training over the same all-reduce alone, where TCP carries it.

The geometric mean, over the numbers of nodes, of B-Caffe's eight public runs on 2, 4 and 8 nodes,
and the standard deviation of one more run, as `tcp_factor` finds them again. A collective alone has
the cores and the link to itself, and its ranks begin together.
"""

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
    graph = traces / "pipedream_profiles" / "resnet50.graph.txt"
    profiles = read_pipedream(graph, one_rank_s=IMAGES / ONE_GPU)
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
                    overhead=_over_tcp(alpha_s, beta) if "Ethernet" in name else None,
                )
                machine, profile = Machine(profiles, cluster), profiles.networks[0]
                work = Workload((PlannedMember("resnet50", profile, profile.batch),), weak=True)
                first = search(work, machine, PlanLimits(strategy=strategy)).chosen.first
                measured_s = IMAGES * gpus / speed
                group = f"{name}, {gpus} GPUs"
                found.append(
                    PlannedRow(
                        "published", group, strategy, first.step_s, half_width(first), measured_s
                    )
                )
    return found


def _over_tcp(alpha_s: float, beta: float) -> Link:
    more = TCP_FACTOR - 1
    return Link(alpha_s=more * alpha_s, beta_s_per_byte=more * beta, spread=TCP_SPREAD)


def published_figures(found: list[PlannedRow]) -> dict[str, Figure]:
    """Return for each network how many rows lie in their 90 % intervals, and how wide these are."""
    figures = {}
    for name, key in (("10 Gbit Ethernet", "ethernet"), ("InfiniBand", "infiniband")):
        own = [row for row in found if row.group.startswith(name)]
        share = share_interval([row.within for row in own], [row.group for row in own])
        figures[f"{key}_coverage"] = Figure.of(share, "of the steps", len(own))
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
    for row in public_runs(folder):
        price = network(collective_alone(folder, row.nodes)).price("all_reduce")
        alone_s = sum(price(size).alone_s for size in row.run.sizes_bytes)
        logs[row.nodes].append(math.log(sum(row.run.seconds) / alone_s))
    every = [log for own in logs.values() for log in own]
    middle = fmean(fmean(own) for own in logs.values())
    apart = stdev(every) * math.sqrt(1 + 1 / len(every))
    return Figure(
        math.exp(middle), "×", len(every), (math.exp(middle - apart), math.exp(middle + apart))
    )


SMALLEST = (
    "parts=[waiting]",
    "layouts=[{nodes: 2}]",
    "rates_mbit=[1000]",
    "models=[fc-heavy]",
    "kinds=[fused, gtopk]",
    "rounds=2",
    "forward_s=0.01",
    "backward_s=0.02",
    "links_s=0.5",
)


def run(settings: Config) -> Result:
    """Measure the parts that are asked for; every configuration stands in the JSON."""
    if {"waiting", "real"} & set(settings.parts):
        require()
    rows: list[PlannedRow] = []
    published: list[PlannedRow] = []
    found: dict[str, Figure] = {}
    notes = list(_NOTES)
    if "waiting" in settings.parts:
        from skindx_bench.cluster import plan_measured

        rows += plan_measured.rows(settings)
    if "real" in settings.parts:
        from skindx_bench.cluster.plan_measured import measured

        took: list[float] = []
        for row in measured(settings):
            if isinstance(row, PlannedRow):
                rows.append(row)
            else:
                took.append(row)
        found["measure_s"] = Figure(max(took), "s", len(took), (min(took), max(took)))
    found = {**figures(rows), **found}
    if "search" in settings.parts:
        found["search_s"] = search_s()
    if "public" in settings.parts and settings.traces:
        folder = settings.traces / "bcaffe_logdata"
        by_run = errors(folder)
        found["bcaffe_error_mean"] = _sizes(list(by_run.values()))
        means = [
            _sizes(list(errors(folder, row.run.name).values())).value for row in public_runs(folder)
        ]
        found["bcaffe_error_mean_any_run"] = _sizes(means)
        published = published_rows(settings.traces)
        found.update(published_figures(published))
        found["message_over_alone"] = tcp_factor(folder)
        notes.append(_PUBLISHED)
        notes.append(
            f"B-Caffe, calibrated on {CALIBRATION} alone, by run: "
            + ", ".join(f"{run} {error:+.1%}" for run, error in by_run.items())
            + ". bcaffe_error_mean_any_run: the mean error with another of the runs as the one "
            "that calibrates, mean, least and most over all of them."
        )
    models = {f"{row.part}: {row.group}: {row.kind}": row.to_dict() for row in (*rows, *published)}
    return Result("plan", found, notes=tuple(notes), models=models, headings=MEANS)


_NOTES = (
    "Emulated cluster: one network namespace a node, gloo over TCP, links limited both ways by tc "
    "tbf. The links are measured first, by the collectives alone; no configuration is seen before. "
    "Waiting: a rank sleeps as long as its layers would compute, and exchanges gradients of their "
    "shapes. Real: `skindx train` on two nodes of one rank and one core each; memory is its peak.",
    "step_error_*: |predicted / measured - 1|, measured as the median of rounds, or of epochs but "
    "the first. order_right: pairs of exchanges of one network on one cluster that differ by 2 % "
    "or more. chosen_over_best: speed of the exchange that is predicted to be the fastest over the "
    "fastest that was measured.",
)

_PUBLISHED = (
    "ethernet_*, infiniband_*: published speeds of ResNet-50 (HKBU-HPML/ddl-benchmarks, results of "
    "2020-05-29, 64 images a GPU) beside plans of PipeDream's profile, scaled to that speed of one "
    "GPU, on the published lines alpha + beta x bytes of an all-reduce, those on Ethernet "
    f"{TCP_FACTOR:g} times as long (+-{TCP_SPREAD:.0%}). message_over_alone: what messages of "
    "B-Caffe's runs take over the same all-reduces alone, with a standard deviation either way."
)


def _sizes(errors: Sequence[float]) -> Figure:
    sizes = [abs(error) for error in errors]
    return Figure(fmean(sizes), "of the step", len(sizes), (min(sizes), max(sizes)))


def synthetic_resnet50() -> Profile:
    """Return a ResNet-50 of the right shapes; the times of its layers follow their operations."""
    load = load_of("resnet50")
    kinds = {4: "Conv2d", 2: "Linear", 1: "BatchNorm2d"}
    # Operations are weights times positions, and an image passes the last layer once.
    once = load.work["fc.weight"] / math.prod(load.shapes["fc.weight"])
    layers = tuple(
        ProfiledLayer(
            name=name,
            operator=kinds[len(shape)],
            activation_bytes=round(128 * shape[0] * load.work[name] / math.prod(shape) / once),
            forward_s=0.1 * load.work[name],
            backward_s=0.2 * load.work[name],
            shapes=(shape,),
            parameter_bytes=4 * math.prod(shape),
        )
        for name, shape in load.shapes.items()
    )
    at = (
        AtBatch(batch=16, compute_s=0.15, peak_bytes=3 * 10**9),
        AtBatch(batch=32, compute_s=0.3, peak_bytes=5 * 10**9),
    )
    return Profile(name="resnet50", batch=32, layers=layers, at=at)


def search_s(rounds: int = 5) -> Figure:
    """Time the search for a ResNet-50 on up to 64 ranks: synthetic times, the network's shapes."""
    profile = synthetic_resnet50()
    machine = Machine(Profiles(networks=(profile,), device="cuda"), preset("10gbe:16x4+nvlink"))
    work = Workload((PlannedMember("m", profile, 2048, epochs=90, images=10**6),))
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        make(work, machine, PlanLimits())
        times.append(time.perf_counter() - started)
    return figure_of(times, "s")
