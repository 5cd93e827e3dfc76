"""The state of a training: its task, engine, average, position."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

import torch
from torch import nn

from skindx.training.checkpoint.stateful import Buffers, Shared
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.feeding.batches import steps_of
from skindx.training.feeding.waiting import Waiting
from skindx.training.parallel.mesh import Mesh
from skindx.training.parallel.sharding.part import parts_of
from skindx.training.position import Position
from skindx.training.preconditioners.preconditioner import Preconditioner
from skindx.training.step_guard import StepGuard
from skindx.training.task import Batch, Result_co, TrainingTask


class Average(Shared, Protocol):
    """A moving average of a network's weights and statistics, which is evaluated and kept."""

    @property
    def module(self) -> nn.Module:
        """A network with the averaged weights."""

    def update(self, module: nn.Module, steps: int) -> None:
        """Take in a network's weights after `steps` steps in all."""


@dataclass(frozen=True)
class Training(Generic[Result_co]):
    """A task in training.

    A checkpoint holds what has state: `engine` (weights, optimizer), `average`, `position`, and
    the batch-norm `statistics` of both networks, which differ by rank until an epoch ends.
    Everything else is made from the settings alone.
    """

    task: TrainingTask[Result_co]
    mesh: Mesh
    engine: Engine
    average: Average | None
    statistics: Buffers
    guard: StepGuard
    position: Position = field(default_factory=Position)
    waiting: Waiting = field(default_factory=Waiting)
    """How long this rank waited for images in the current epoch."""
    take: "Callable[[Training[Any], Batch], float | None] | None" = None
    """Takes a step in place of `take_step`, on this rank."""

    @property
    def name(self) -> str:
        """The task's name in messages."""
        return self.task.name

    @property
    def epochs(self) -> int:
        """How many there will be at most."""
        return self.task.epochs

    def evaluated(self) -> nn.Module:
        """Return the network that is validated and kept; every rank calls this.

        It is the average, or the one in training; the next step changes either.
        """
        if self.average is None:
            return self.engine.whole()
        average = self.average.module
        return self.engine.whole(average) if parts_of(average) else average


def setup(
    task: TrainingTask[Result_co],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    average: Average | None,
    settings: TrainSettings,
    mesh: Mesh,
    say: Callable[[str], None],
    preconditioner: Preconditioner | None = None,
) -> Training[Result_co]:
    """Return a task before its first step; `network` lies on the mesh's device."""
    engine = Engine(
        network,
        optimizer,
        mesh,
        task.batch,
        exchange=settings.exchange,
        preconditioner=preconditioner,
        steps_per_epoch=steps_of(task.images, task.batch),
        say=say,
    )
    networks = [engine.module, *([average.module] if average else [])]
    statistics = Buffers(networks, mesh.data.rank, mesh.data.size)
    return Training(
        task, mesh, engine, average, statistics, StepGuard(mesh, settings.checkpoint.bad_steps)
    )
