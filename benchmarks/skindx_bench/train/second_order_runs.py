"""Trainings of the compared optimizers, kept in files, and the cost of K-FAC's steps."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from skindx.core.atomic_files import write_json
from skindx.core.measurement import interleave
from skindx.core.untrusted import read_json
from skindx.data.manifest import read_manifest
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.network_setup import shapes_only
from skindx.taxonomy import Taxonomy
from skindx.training.callbacks import Silent
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.loop import train
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.classifier_job import MemberJob, setup_member
from skindx.training.tasks.losses import SmoothedCrossEntropy, drawn_loss
from skindx_methods.kfac.eigen import decompose
from skindx_methods.kfac.kfac import Kfac
from skindx_methods.kfac.kfac_settings import KfacSettings
from skindx_methods.kfac.layers import find_layers
from skindx_methods.kfac.sharing import plan_sharing

RATE_FACTOR = 10**0.5
"""Between two learning rates that are tried."""


@dataclass(frozen=True)
class OptimizerArm:
    """An optimizer: what it changes in the recipe, and the learning rate that its trials lie about.

    `rate` is what its authors or its library use; trials are a factor of 10^(1/2) apart.
    """

    rate: float
    recipe: dict[str, Any]

    def rates(self, trials: int) -> list[float]:
        """Return the learning rates that are tried, the usual one in their middle."""
        low = -(trials // 2)
        return [float(f"{self.rate * RATE_FACTOR**step:.3g}") for step in range(low, low + trials)]


ARMS: dict[str, OptimizerArm] = {
    "adamw": OptimizerArm(1e-3, {"optimizer": "adamw", "weight_decay": 0.05}),
    "sgd": OptimizerArm(0.05, {"optimizer": "sgd", "weight_decay": 5e-4}),
    "kfac": OptimizerArm(
        0.05, {"optimizer": "sgd", "weight_decay": 5e-4, "preconditioner": {"kind": "kfac"}}
    ),
    "muon": OptimizerArm(1e-3, {"optimizer": "muon", "weight_decay": 0.05}),
}
BASELINE = "adamw"


@dataclass(frozen=True)
class Curve:
    """Validation accuracy after each epoch, and the seconds of training up to it."""

    balanced: tuple[float, ...]
    seconds: tuple[float, ...]
    """By the clock."""
    processor_seconds: tuple[float, ...]
    """Of all threads; on a GPU those that feed it."""

    @property
    def best(self) -> float:
        """The best balanced accuracy."""
        return max(self.balanced)

    def reaches(self, target: float) -> "Reached":
        """Return whether and when the target is reached.

        Where it never is, the whole training stands in for the time that is not known.
        """
        hits = [epoch for epoch, balanced in enumerate(self.balanced) if balanced >= target]
        last = hits[0] if hits else len(self.balanced) - 1
        return Reached(bool(hits), last + 1, self.seconds[last], self.processor_seconds[last])


@dataclass(frozen=True)
class Reached:
    """After how many epochs and seconds an accuracy was reached."""

    hit: bool
    epochs: int
    seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class Trainings:
    """Shared inputs of all trainings: data, network, recipe, process."""

    dataset: Path
    member: Mapping[str, Any]
    recipe: Mapping[str, Any]
    folds: int
    out: Path
    mesh: Mesh

    def curve(self, arm: str, rate: float, fold: int, seed: int) -> Curve:
        """Return the curve of one training, which is trained unless it is kept in `out`."""
        settings = self._settings(arm, rate, fold, seed)
        plain = settings.model_dump(mode="json")
        file = self.out / "curves" / f"{arm}-{rate:g}-fold{fold}-seed{seed}.json"
        kept = read_json(file) if file.is_file() else {}
        if kept.get("settings") != plain or "processor_seconds" not in kept:
            history = self._train(settings)
            kept = {
                "settings": plain,
                "balanced": [row["val_balanced"] for row in history],
                "seconds": [row["seconds"] for row in history],
                "processor_seconds": [row["processor_seconds"] for row in history],
            }
            write_json(file, kept)
        return Curve(*(tuple(kept[key]) for key in ("balanced", "seconds", "processor_seconds")))

    def _settings(self, arm: str, rate: float, fold: int, seed: int) -> TrainSettings:
        return TrainSettings.parse(
            {
                "name": arm,
                "folds": self.folds,
                "engine": self.mesh.settings.model_dump(mode="json"),
                "recipe": {**self.recipe, **ARMS[arm].recipe, "learning_rate": rate},
                "members": [{**self.member, "name": arm, "fold": fold, "seed": seed}],
            }
        )

    def _train(self, settings: TrainSettings) -> list[dict[str, Any]]:
        records, taxonomy = (
            read_manifest(self.dataset),
            Taxonomy.load(self.dataset / "taxonomy.yaml"),
        )
        (member,) = settings.members
        job = MemberJob(self.out, self.dataset, settings, member, records, taxonomy.keys)
        training = setup_member(settings, member, job.data, self.mesh, lambda line: None)
        timed = _Timed(training.mesh.device)
        _, history = train(training, timed)
        return [
            {**row, "seconds": seconds, "processor_seconds": of_processor}
            for row, (seconds, of_processor) in zip(history, timed.seconds, strict=True)
        ]


class _Timed(Silent):
    """Takes the seconds of each epoch with its validation, to more digits than the history.

    By the clock, and of the processor, which other work on the machine does not lengthen.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.seconds: list[tuple[float, float]] = []
        self._device, self._began = device, (0.0, 0.0)

    def start(self, history: Any) -> None:
        self._began = self._now()

    def epoch(self, history: Any, line: str) -> None:
        clock, processor = self._now()
        self.seconds.append((clock - self._began[0], processor - self._began[1]))

    def _now(self) -> tuple[float, float]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter(), time.process_time()


_BATCHES = 8
"""Of images that steps go through in turn."""


class Stepper:
    """Trains one network on some images of a dataset, with K-FAC or without."""

    def __init__(
        self, network: dict[str, Any], dataset: Path, batch: int, mesh: Mesh, *, kfac: bool
    ) -> None:
        torch.manual_seed(0)
        size = int(network["preprocess"]["size"])
        images, labels = _images(dataset, size, _BATCHES * batch)
        classes = int(labels.max()) + 1
        module = build_classifier(ClassifierSettings(**network), classes).to(mesh.device)
        self.criterion = SmoothedCrossEntropy(torch.ones(classes, device=mesh.device), 0.1)
        settings = KfacSettings()
        self.kfac = Kfac(settings, module, mesh, draw=drawn_loss(self.criterion)) if kfac else None
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        self.engine = Engine(module, optimizer, mesh, batch, method=self.kfac)
        self.engine.train()
        self.batches = list(
            zip(
                torch.split(images.to(mesh.device), batch),
                torch.split(labels.to(mesh.device), batch),
                strict=True,
            )
        )
        self.taken = 0

    def steps(self, count: int, rate: float) -> None:
        """Take so many steps at a learning rate."""
        for _ in range(count):
            images, labels = self.batches[self.taken % len(self.batches)]
            loss: Tensor = self.criterion(self.engine(images).float(), labels)
            self.engine.backward(loss, len(labels))
            self.engine.step(rate)
            self.taken += 1
        _wait(labels.device)


def _images(dataset: Path, size: int, most: int) -> tuple[Tensor, Tensor]:
    """Return some images of a dataset as squares, and their labels, in a mixed order."""
    records, taxonomy = read_manifest(dataset), Taxonomy.load(dataset / "taxonomy.yaml")
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))[:most]
    chosen = [records[int(number)] for number in order]
    pixels = [
        cv2.resize(cv2.imread(str(dataset / record.path)), (size, size))[..., ::-1].copy()
        for record in chosen
    ]
    labels = [taxonomy.keys.index(record.label) for record in chosen]
    return torch.from_numpy(np.stack(pixels)), torch.tensor(labels)


def overhead(
    network: dict[str, Any],
    dataset: Path,
    batch: int,
    mesh: Mesh,
    *,
    steps: int,
    rounds: int,
    rate: float,
) -> tuple[list[float], list[float]]:
    """Return seconds of `steps` steps with K-FAC and without, `rounds` each.

    `steps` are those between two decompositions, so that each round has one. The network learns
    meanwhile: what K-FAC can leave out depends on its curvature, and a new network's last norms of
    residual branches are zero, which makes all factors behind them zero.
    """
    with_it = Stepper(network, dataset, batch, mesh, kfac=True)
    without = Stepper(network, dataset, batch, mesh, kfac=False)
    with_it.steps(steps, rate)  # the first ones have more decompositions
    candidates: dict[str, Callable[[], object]] = {
        "kfac": lambda: with_it.steps(steps, rate),
        "plain": lambda: without.steps(steps, rate),
    }
    seconds = interleave(candidates, rounds, warmup=0)
    for stepper in (with_it, without):
        stepper.engine.close()
    return seconds["kfac"], seconds["plain"]


def eigen_share(model: str, ranks: int, rounds: int, device: torch.device) -> list[float]:
    """Return the slowest rank's part of the time that one rank takes for all eigenvectors.

    Random factors of each shape of a network are timed on this machine, one of each shape a round;
    K-FAC's own plan deals them out.
    """
    with shapes_only():
        module = build_classifier(ClassifierSettings(model=model), 10)
    layers, _ = find_layers(module, KfacSettings().widest)
    shapes = {layer.name: layer.shapes for layer in layers}
    sharing = plan_sharing(shapes, ranks, 1.0)
    shares = []
    for number in range(rounds):
        generator = torch.Generator(device).manual_seed(number)
        seconds: dict[tuple[int, int], float] = {}
        loads = [0.0] * ranks
        for (name, factor), rank in sharing.rank_of.items():
            shape = shapes[name][factor]
            if shape not in seconds:
                seconds[shape] = _seconds(shape, generator, device)
            loads[rank] += seconds[shape]
        shares.append(max(loads) / sum(loads))
    return shares


def _seconds(shape: tuple[int, int], generator: torch.Generator, device: torch.device) -> float:
    blocks, width = shape
    rows = torch.randn(blocks, width, width, generator=generator, device=device)
    factor = rows @ rows.transpose(1, 2) / width
    _wait(device)
    began = time.perf_counter()
    decompose(factor, KfacSettings().damping)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
