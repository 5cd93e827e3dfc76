"""Cost of K-FAC: a step with it over one without, and decompositions shared by ranks."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from skindx.core.cost.assignment import plan_sharing
from skindx.core.measurement import interleave
from skindx.data.manifest import read_manifest
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.network_setup import shapes_only
from skindx.taxonomy import Taxonomy
from skindx.training.config.preconditioner import KfacSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.parallel.mesh import Mesh
from skindx.training.preconditioners.kfac.eigen import decompose
from skindx.training.preconditioners.kfac.kfac import Kfac
from skindx.training.preconditioners.kfac.layers import find_layers
from skindx.training.tasks.losses import SmoothedCrossEntropy, drawn_loss

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
        self.engine = Engine(module, optimizer, mesh, batch, preconditioner=self.kfac)
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
