"""Predictions of `skindx plan` against measurements: steps, memory, order, intervals."""

import time
from collections.abc import Sequence
from statistics import fmean

from skindx_bench.cluster.plan_rows import Config, PlannedRow, figures
from skindx_bench.harness.netlab import require
from skindx_bench.harness.result import MEANS, Figure, Result, median

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
        from skindx_bench.cluster import plan_published
        from skindx_bench.cluster.plan_published import (
            published_figures,
            published_rows,
            tcp_factor,
        )

        folder = settings.traces / "bcaffe_logdata"
        by_run = plan_published.errors(folder)
        found["bcaffe_error_mean"] = _sizes(list(by_run.values()))
        means = [
            _sizes(list(plan_published.errors(folder, row.run.name).values())).value
            for row in plan_published.rows(folder)
        ]
        found["bcaffe_error_mean_any_run"] = _sizes(means)
        published = published_rows(settings.traces)
        found.update(published_figures(published))
        found["message_over_alone"] = tcp_factor(folder)
        notes.append(_PUBLISHED)
        notes.append(
            f"B-Caffe, calibrated on {plan_published.CALIBRATION} alone, by run: "
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
    "GPU, on the published lines alpha + beta x bytes of an all-reduce. message_over_alone: what "
    "messages of B-Caffe's runs take over the same all-reduces alone, with a standard deviation "
    "either way."
)


def _sizes(errors: Sequence[float]) -> Figure:
    sizes = [abs(error) for error in errors]
    return Figure(fmean(sizes), "of the step", len(sizes), (min(sizes), max(sizes)))


def search_s(rounds: int = 5) -> Figure:
    """Time the search for a ResNet-50 on up to 64 ranks: synthetic times, the network's shapes."""
    from skindx.core.cost.profile import AtBatch, Profile, ProfiledLayer, Profiles
    from skindx.plan.choice import PlannedMember, Workload
    from skindx.plan.estimate import Machine
    from skindx.plan.plan import make
    from skindx.plan.search import PlanLimits
    from skindx.plan.trace_plan import preset
    from skindx_bench.cluster.gradient_load import load_of

    load = load_of("resnet50")
    kinds = {4: "Conv2d", 2: "Linear", 1: "BatchNorm2d"}
    # Operations are weights times positions, and an image passes the last layer once.
    once = load.work["fc.weight"] / _product(load.shapes["fc.weight"])
    layers = tuple(
        ProfiledLayer(
            name=name,
            operator=kinds[len(shape)],
            activation_bytes=round(128 * shape[0] * load.work[name] / _product(shape) / once),
            forward_s=0.1 * load.work[name],
            backward_s=0.2 * load.work[name],
            shapes=(shape,),
            parameter_bytes=4 * _product(shape),
        )
        for name, shape in load.shapes.items()
    )
    at = (
        AtBatch(batch=16, compute_s=0.15, peak_bytes=3 * 10**9),
        AtBatch(batch=32, compute_s=0.3, peak_bytes=5 * 10**9),
    )
    profile = Profile(name="resnet50", layers=layers, at=at)
    machine = Machine(Profiles(networks=(profile,), device="cuda"), preset("10gbe:16x4+nvlink"))
    work = Workload((PlannedMember("m", profile, 2048, epochs=90, images=10**6),))
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        make(work, machine, PlanLimits())
        times.append(time.perf_counter() - started)
    return median(times, "s")


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
