"""Cost of K-FAC: a step with it over one without, and decompositions shared by ranks."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.shapes_only import shapes_only
from skindx.planning.sharing import plan_sharing
from skindx.timing import interleave
from skindx.training.config.preconditioner import KfacSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.parallel.mesh import Mesh
from skindx.training.preconditioners.kfac.eigen import decompose
from skindx.training.preconditioners.kfac.finding import find_layers
from skindx.training.preconditioners.kfac.kfac import Kfac
from skindx.training.recipes.losses import SmoothedCrossEntropy, drawn_loss


class Stepper:
    """Trains one network on one batch of noise, with K-FAC or without."""

    def __init__(self, network: dict[str, Any], batch: int, mesh: Mesh, *, kfac: bool) -> None:
        torch.manual_seed(0)
        classes = 10
        size = int(network["preprocess"]["size"])
        module = build_classifier(ClassifierSettings(**network), classes).to(mesh.device)
        self.criterion = SmoothedCrossEntropy(torch.ones(classes, device=mesh.device), 0.1)
        settings = KfacSettings()
        self.kfac = Kfac(settings, module, mesh, draw=drawn_loss(self.criterion)) if kfac else None
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        self.engine = Engine(module, optimizer, mesh, batch, preconditioner=self.kfac)
        self.engine.train()
        shape = (batch, size, size, 3)
        self.images = torch.randint(0, 255, shape, dtype=torch.uint8, device=mesh.device)
        self.labels = torch.arange(batch, device=mesh.device) % classes

    def steps(self, count: int) -> None:
        """Take so many steps."""
        for _ in range(count):
            loss: Tensor = self.criterion(self.engine(self.images).float(), self.labels)
            self.engine.backward(loss, len(self.labels))
            self.engine.step(1e-4)
        _wait(self.images.device)


def overhead(
    network: dict[str, Any], batch: int, mesh: Mesh, *, steps: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Return seconds of `steps` steps with K-FAC and without, `rounds` each.

    `steps` are those between two decompositions, so that each round has one.
    """
    with_it = Stepper(network, batch, mesh, kfac=True)
    without = Stepper(network, batch, mesh, kfac=False)
    with_it.steps(steps)  # the first ones have more decompositions
    candidates: dict[str, Callable[[], object]] = {
        "kfac": lambda: with_it.steps(steps),
        "plain": lambda: without.steps(steps),
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
