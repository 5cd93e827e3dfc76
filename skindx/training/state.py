"""A task in training: its interface, and its state (engine, average, position)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from skindx.data.loader.batches import steps_of
from skindx.training.checkpoint.saved_state import Buffers, Shared
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.method import Method, method_of
from skindx.training.parallel.mesh import Mesh
from skindx.training.position import Position, StepGuard, Waiting, step_guard

Result_co = TypeVar("Result_co", covariant=True)

Row = dict[str, Any]
"""One epoch's figures, as in the history."""

Piece = tuple[Tensor, Any]
"""What goes through the network at once, and what its loss is computed from; on the device."""


@dataclass(frozen=True)
class Batch:
    """This rank's part of one step."""

    pieces: Callable[[], Sequence[Piece]]
    """Makes the pieces that go through the network one after the other."""
    local_count: int
    """Images of this rank."""
    count: int
    """Images of all ranks."""


@dataclass(frozen=True)
class EpochSpeed:
    """How fast the steps of an epoch were."""

    images_per_s: float
    wait_share: float
    """Share of the time in which this rank waited for images."""
    memory_gb: float
    """Peak memory."""
    seconds: float
    """Seconds of training so far, without the time between stops."""


class TrainingTask(Protocol[Result_co]):
    """What is trained: its batches, its loss, its validation. The loop does everything else.

    `ClassifierTask`, `HeadsTask` and `DetectorTask`, all in `tasks`, are those that there are.
    Everything that a task draws is a pure function of (seed, epoch, step), of the image's number
    or of the rank, so that a training that starts anywhere goes on to the bit.
    """

    @property
    def name(self) -> str:
        """The task's name in messages."""

    @property
    def seed(self) -> int:
        """Seed of everything that is drawn."""

    @property
    def epochs(self) -> int:
        """Largest number of epochs."""

    @property
    def images(self) -> int:
        """Training images of all ranks: what an epoch shows."""

    @property
    def batch(self) -> int:
        """Images in a step, over all ranks."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, from step `first` on."""

    def loss(self, outputs: Any, targets: Any, count: int) -> Tensor:
        """Return the summed loss of a piece; `count` images of all ranks are in its step."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from the first of the training."""

    def validate(
        self, network: nn.Module, speed: EpochSpeed, stop_requested: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Return an epoch's figures of `network`; every rank calls this.

        Raises ValidationStoppedError when any rank has `stop_requested` meanwhile, DivergedError
        for answers that are not finite.
        """

    def enough(self, history: Sequence[Row]) -> str:
        """Return why no further epoch is needed; empty to train on."""

    def line(self, row: Row) -> str:
        """Return an epoch's figures as a line."""

    def result(self, network: nn.Module, stop_requested: Callable[[], bool]) -> Result_co:
        """Return what the training gave; every rank calls this after the last epoch."""


class DivergedError(ArithmeticError):
    """A network's weights or answers are no longer finite; the text says which."""


class ValidationStoppedError(Exception):
    """A rank was asked to stop while it validated; raised on all of them."""


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
    """The networks' buffers, so that a skipped step can be undone."""
    guard: StepGuard
    """Guard whose `check` returns a loss as a number, and None where a rank's is not finite."""
    position: Position = field(default_factory=Position)
    waiting: Waiting = field(default_factory=Waiting)
    """How long this rank waited for images in the current epoch."""
    take: "Callable[[Training[Any], Batch], float | None] | None" = None
    """Takes a step in place of `take_step`, on this rank."""

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def epochs(self) -> int:
        """Largest number of epochs."""
        return self.task.epochs

    def evaluated(self) -> nn.Module:
        """Return the network that is validated and kept; every rank calls this.

        It is the average, or the one in training; the next step changes either.
        """
        if self.average is None:
            return self.engine.whole()
        average = self.average.module
        return method_of(average).whole(average)


def setup(
    task: TrainingTask[Result_co],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    average: Average | None,
    settings: TrainSettings,
    mesh: Mesh,
    say: Callable[[str], None],
    method: Method | None = None,
) -> Training[Result_co]:
    """Return a task before its first step; `network` lies on the mesh's device."""
    engine = Engine(
        network,
        optimizer,
        mesh,
        task.batch,
        exchange=settings.exchange,
        method=method,
        steps_per_epoch=steps_of(task.images, task.batch),
        say=say,
    )
    networks = [engine.module, *([average.module] if average else [])]
    statistics = Buffers(networks, mesh.data.rank, mesh.data.size)
    guard = step_guard(settings.exchange, mesh, settings.checkpoint)
    return Training(task, mesh, engine, average, statistics, guard)
