"""Ranks that train, one a core: `skindx plan` and `skindx train` as a user starts them."""

import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from skindx.core.errors import JobError
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, write_manifest
from skindx.plan.saved_plan import happened_of
from skindx.plan.search import PlanLimits
from skindx.plan.strategies import strategy_of
from skindx.plan.trace_plan import Asked
from skindx.plan.training_plan import plan_of_config
from skindx.taxonomy import SkinClass, Taxonomy
from skindx.training.checkpoint.finished import HISTORY, member_folder
from skindx.training.config.run import TrainSettings
from skindx_bench.data.images import HEIGHT, WIDTH, noisy_jpegs
from skindx_bench.harness.netlab import INTERFACE, Link, NetLab
from skindx_bench.plan.scoring import Row
from skindx_bench.plan.settings import Config, Kind
from skindx_bench.plan.waiting import strategy_and_options

_NODES = 2
_LIMIT_S = 900.0
_SPLITS = ("train", "train", "train", "train", "val", "calibration", "test", "train")


def measured(settings: Config) -> Iterator[Row | float]:
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
) -> Row:
    folder, dataset, lab = where
    trace, cluster = files
    rate = lab.link.rate_mbit
    config = _write_config(folder / "train.yaml", settings, model, kind)
    limits = PlanLimits(strategy=kind, extrapolate=True, lossy=True)
    made = plan_of_config(TrainSettings.load(config), dataset, Asked(limits, trace, str(cluster)))
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
    return Row(
        "real",
        f"{model}, {_NODES} x 1, {rate:g} Mbit/s",
        kind,
        predicted.step_s,
        predicted.half_width,
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
            command = lab.command(rank, sys.executable, "-m", "skindx", *map(str, words))
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        codes = [process.wait(_LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    _check(words, codes)


def _skindx(*words: object) -> None:
    command = [sys.executable, "-m", "skindx", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=_LIMIT_S)
    _check(words, [done.returncode])


def _check(words: Sequence[object], codes: Sequence[int]) -> None:
    if any(codes):
        raise JobError(f"`skindx {words[0]} {words[1]}` stopped; see its error above")
