"""Measured steps beside a plan's: of ranks that wait as long as layers compute, or that train."""

import csv
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from skindx.core.cost.profile import LocalWork, Profile, ProfiledLayer
from skindx.core.errors import JobError
from skindx.core.machine import python_command
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, write_manifest
from skindx.taxonomy import SkinClass, Taxonomy
from skindx.training.checkpoint.finished import HISTORY, member_folder
from skindx.training.config.run import TrainSettings
from skindx_bench.cluster.gradient_load import load_of
from skindx_bench.cluster.plan_rows import Config, Kind, Layout, PlannedRow
from skindx_bench.harness.netlab import INTERFACE, Link, NetLab
from skindx_bench.harness.ranks import EmulatedCluster as Ranks
from skindx_bench.harness.training import HEIGHT, WIDTH, noisy_jpegs
from skindx_methods.plan.choices import Choice
from skindx_methods.plan.cluster import Cluster
from skindx_methods.plan.estimate import Estimate, Machine, estimate
from skindx_methods.plan.interval import half_width
from skindx_methods.plan.plan import PlanRequest
from skindx_methods.plan.profiles import Profiles, trace_of
from skindx_methods.plan.saved_plan import happened_of
from skindx_methods.plan.search import PlanLimits
from skindx_methods.plan.strategy_kinds import strategy_of
from skindx_methods.plan.training_plan import plan_of_config

_WORKER = "skindx_bench.cluster.plan_rank"

_FC_HEAVY: dict[str, tuple[tuple[int, ...], float]] = {
    "conv1": ((32, 3, 3, 3), 0.25),
    "conv2": ((64, 32, 3, 3), 0.45),
    "fc1": ((1024, 3136), 0.2),
    "fc2": ((512, 1024), 0.08),
    "head": ((10, 512), 0.02),
}
"""Parameters to shape and share of the work; nearly all bytes are in the first fully connected."""


def rows(settings: Config) -> Iterator[PlannedRow]:
    """Yield each configuration: predicted from what was measured before, and measured."""
    for layout in settings.layouts:
        for rate in settings.rates_mbit:
            with (
                NetLab(layout.nodes, Link(rate)) as lab,
                Ranks(lab, layout.ranks, {"per_node": layout.ranks_per_node}, _WORKER) as ranks,
            ):
                known = Cluster.model_validate(ranks.ask("links", budget_s=settings.links_s)[0])
                for model in settings.models:
                    yield from _of_model(settings, layout, rate, model, (ranks, known))


def _of_model(
    settings: Config, layout: Layout, rate: float, model: str, where: tuple[Ranks, Cluster]
) -> Iterator[PlannedRow]:
    ranks, cluster = where
    shapes, work = load(model)
    answers = ranks.ask("load", shapes=shapes)
    profile = profile_of(settings, model, shapes, work, answers)
    machine = Machine(Profiles(networks=(profile,), device="cuda"), cluster)
    planned = {
        kind: estimate(profile, _choice(kind, layout), machine) for kind in kinds(settings, layout)
    }
    ready_s = trace_of(profile).ready_s
    times: dict[Kind, list[float]] = {kind: [] for kind in planned}
    for turn in range(settings.rounds + 1):
        for kind, found in planned.items():
            seconds = ranks.slowest(
                "step", exchange=_exchange(found), groups=_groups(found), ready_s=ready_s
            )
            if turn:  # the first one compiles and opens connections
                times[kind].append(seconds)
    group = f"{model}, {layout.nodes} x {layout.ranks_per_node}, {rate:g} Mbit/s"
    for kind, found in planned.items():
        yield PlannedRow(
            "waiting", group, kind, found.step_s, half_width(found), median(times[kind])
        )


def kinds(settings: Config, layout: Layout) -> list[Kind]:
    """Return the kinds that a layout can run."""
    levels = layout.nodes > 1 and layout.ranks_per_node > 1
    return [kind for kind in settings.kinds if kind != "hierarchical" or levels]


def strategy_and_options(kind: Kind) -> tuple[str, dict[str, Any]]:
    """Return the strategy of a kind."""
    name, _, wire = kind.partition("+")
    return name, {"wire": wire} if wire else {}


def _choice(kind: Kind, layout: Layout) -> Choice:
    options = {"ranks_per_node": layout.ranks_per_node} if kind == "hierarchical" else {}
    name, given = strategy_and_options(kind)
    strategy = strategy_of(name, {**given, **options})
    return Choice(strategy, layout.nodes, layout.ranks_per_node, layout.ranks)


def _exchange(found: Estimate) -> dict[str, Any]:
    """Return the settings of the exchange, with nothing that changes from step to step."""
    raw: dict[str, Any] = dict(found.choice.strategy.fragment()["exchange"])
    if raw["kind"] == "fused":
        raw["tune"] = False
    if raw["kind"] in ("topk", "gtopk"):
        raw["warmup"] = []
    return raw


def _groups(found: Estimate) -> list[int]:
    """Return how many tensors each message of the prediction has."""
    ends = [message.tensors for message in found.schedule.messages]
    return [end - before for before, end in zip([0, *ends[:-1]], ends, strict=True)]


def load(model: str) -> tuple[dict[str, tuple[int, ...]], dict[str, float]]:
    """Return shapes and shares of the work by parameter, in the order in which they are made."""
    if model == "fc-heavy":
        return (
            {name: shape for name, (shape, _) in _FC_HEAVY.items()},
            {name: share for name, (_, share) in _FC_HEAVY.items()},
        )
    found = load_of(model)
    return dict(found.shapes), dict(found.work)


def profile_of(
    settings: Config,
    model: str,
    shapes: Mapping[str, tuple[int, ...]],
    work: Mapping[str, float],
    answers: list[dict[str, Any]],
) -> Profile:
    """Return the trace of a network that waits: its shares of forward and backward."""
    local = {
        kind: LocalWork.model_validate(
            {
                **answers[0]["local"][kind],
                "base_s": max(answer["local"][kind]["base_s"] for answer in answers),
                "merge_s": max(answer["local"][kind]["merge_s"] for answer in answers),
            }
        )
        for kind in answers[0]["local"]
    }
    layers = tuple(
        ProfiledLayer(
            name=name,
            forward_s=settings.forward_s * work[name],
            backward_s=settings.backward_s * work[name],
            shapes=(tuple(shape),),
            parameter_bytes=4 * math.prod(shape),
        )
        for name, shape in shapes.items()
    )
    norm_s = max(answer["norm_s"] for answer in answers)
    return Profile(name=model, batch=1, layers=layers, update_s=norm_s, local=local)


_NODES = 2
_LIMIT_S = 900.0
_SPLITS = ("train", "train", "train", "train", "val", "calibration", "test", "train")


def measured(settings: Config) -> Iterator[PlannedRow | float]:
    """Yield the seconds that measuring took, then each configuration."""
    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        folder = Path(name)
        dataset = paint(folder / "data", settings.real_images)
        for model in settings.real_models:
            config = _write_config(folder / f"{model}.yaml", settings, model, "dense")
            trace = folder / f"{model}.json"
            started = time.perf_counter()
            _skindx("plan", "measure", config, dataset, "--out", trace, "--ranks", _NODES)
            yield time.perf_counter() - started
            for rate in settings.real_rates_mbit:
                with NetLab(_NODES, Link(rate)) as lab:
                    cluster = folder / f"{model}-{rate:g}.yaml"
                    _in_lab(lab, "plan", "network", "--out", cluster, "--ranks-per-node", 1)
                    for kind in settings.real_kinds:
                        yield _trained(
                            settings, (folder, dataset, lab), model, kind, (trace, cluster)
                        )


def _trained(
    settings: Config,
    where: tuple[Path, Path, NetLab],
    model: str,
    kind: Kind,
    files: tuple[Path, Path],
) -> PlannedRow:
    folder, dataset, lab = where
    trace, cluster = files
    rate = lab.link.rate_mbit
    config = _write_config(folder / "train.yaml", settings, model, kind)
    limits = PlanLimits(strategy=kind, extrapolate=True, lossy=True)
    made = plan_of_config(
        TrainSettings.load(config), dataset, PlanRequest(limits, trace, str(cluster))
    )
    run = folder / f"{model}-{kind}-{rate:g}"
    _in_lab(lab, "train", dataset, "--config", config, "--out", run)
    with (member_folder(run, "m") / HISTORY).open() as file:
        rows = [
            {key: float(value) for key, value in row.items() if value}
            for row in csv.DictReader(file)
        ]
    images = sum(1 for split in _all_splits(settings.real_images) if split == "train")
    found = happened_of("m", rows, images, settings.real_batch)
    assert found
    predicted = made.chosen.first
    return PlannedRow(
        "real",
        f"{model}, {_NODES} x 1, {rate:g} Mbit/s",
        kind,
        predicted.step_s,
        half_width(predicted),
        found.step_s,
        predicted.memory.peak_bytes,
        found.memory_bytes,
    )


def _write_config(path: Path, settings: Config, model: str, kind: Kind) -> Path:
    name, options = strategy_and_options(kind)
    fragment = strategy_of(name, options).fragment()
    if fragment["exchange"]["kind"] == "gtopk":
        fragment["exchange"]["warmup"] = []
    if fragment["exchange"]["kind"] == "fused":
        fragment["exchange"]["tune"] = False
    raw = {
        "members": [{"name": "m", "model": model, "preprocess": {"size": settings.real_size}}],
        "recipe": {"epochs": settings.real_epochs, "batch": settings.real_batch},
        "engine": {"accelerator": "cpu", "ranks": 1, **fragment["engine"]},
        "exchange": fragment["exchange"],
    }
    path.write_text(yaml.safe_dump(raw))
    return path


def paint(folder: Path, count: int) -> Path:
    """Write a dataset of two classes in all splits."""
    records = []
    for number, (data, split) in enumerate(
        zip(noisy_jpegs(count), _all_splits(count), strict=True)
    ):
        sha256, path = store_bytes(folder, data, ".jpg")
        label = "ab"[number // len(_SPLITS) % 2]
        records.append(Record(path, sha256, "0" * 16, WIDTH, HEIGHT, label, sha256, split))  # type: ignore[arg-type]
    classes = tuple(SkinClass(key=key, name=key) for key in "ab")
    Taxonomy(name="ab", title="A and B", classes=classes).save(folder / "taxonomy.yaml")
    write_manifest(folder, records)
    return folder


def _all_splits(count: int) -> list[str]:
    return [_SPLITS[number % len(_SPLITS)] for number in range(count)]


def _in_lab(lab: NetLab, *words: object) -> None:
    """Run a verb as one rank in each node. Raises JobError when one fails."""
    processes = []
    try:
        for rank in range(_NODES):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(_NODES),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": str(_NODES),  # they share the cores of this machine
                "MASTER_ADDR": lab.address(0),
                "MASTER_PORT": "29500",
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "OMP_NUM_THREADS": "1",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
            }
            command = lab.command(rank, *python_command("-m", "skindx", *map(str, words)))
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        codes = [process.wait(_LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    _check(words, codes)


def _skindx(*words: object) -> None:
    command = python_command("-m", "skindx", *map(str, words))
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=_LIMIT_S)
    _check(words, [done.returncode])


def _check(words: Sequence[object], codes: Sequence[int]) -> None:
    if any(codes):
        raise JobError(f"`skindx {words[0]} {words[1]}` stopped; see its error above")
