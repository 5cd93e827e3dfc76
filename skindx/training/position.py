"""Position of a training (epoch, step, counters), and the check of each step on all ranks."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.errors import UserError
from skindx.core.kinds import load_object
from skindx.training.config.engine import CheckpointSettings
from skindx.training.parallel.batch_norm import average_buffers
from skindx.training.parallel.mesh import Mesh


class StepGuard:
    """Is the loss finite, a checkpoint due, a stop asked for? One answer on all ranks.

    One small reduction a step: a rank that skipped or stopped alone would leave others waiting. So
    all ranks take each step together, and hold the same weights after it. An exchange that lets
    them do otherwise names a class derived from this one.
    """

    skipped_words = "the step is"
    """What a line says to be skipped."""

    def __init__(
        self,
        mesh: Mesh,
        bad_steps: int,
        stop_requested: Callable[[], bool] = lambda: False,
        due: Callable[[], bool] = lambda: False,
    ) -> None:
        """Stop where any rank has `stop_requested`, and save what is `due` on the main one.

        `bad_steps` without a finite loss may follow one another.
        """
        self.mesh, self.bad_steps = mesh, bad_steps
        self.stop_requested, self.due = stop_requested, due
        self.due_alike: Callable[[], bool] = lambda: False
        """True on all ranks at once, without a message."""
        self.stop = self.save = False
        self.broken: Callable[[], bool] = lambda: False
        """The ranks cannot agree on anything any more."""
        self.more: Sequence[Callable[[], bool]] = ()
        """Further questions, of which all ranks learn whether any rank says yes."""
        self.flags: tuple[bool, ...] = ()
        """The last step's answers to them."""

    @classmethod
    def for_training(cls, mesh: Mesh, settings: CheckpointSettings) -> Self:
        """Return the guard of a training that is saved by these settings."""
        return cls(mesh, settings.bad_steps)

    def interrupted(self) -> bool:
        """Tell whether this rank is to leave off what it does without the others."""
        return self.stop_requested() or self.broken()

    def check(self, loss: Tensor) -> float | None:
        """Return this rank's loss, None when some rank's is not finite; take in what was asked for.

        Only this call of a step waits for a GPU: what follows is queued while the GPU works.
        """
        local = loss.detach().float()
        due = self.mesh.is_main and self.due()
        flags = torch.stack(
            [
                (~local.isfinite()).float(),
                *(local.new_full((), flag) for flag in (self.stop_requested(), due)),
                *(local.new_full((), question()) for question in self.more),
            ]
        )
        if self.mesh.data.size > 1:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        some_bad, stop, save, *more, value = torch.cat([flags, local.view(1)]).tolist()
        self.stop, self.save, self.flags = bool(stop), bool(save), tuple(map(bool, more))
        return None if some_bad else value

    def agreed(self, engine: Any, *, taken: bool) -> int:
        """Return over how many steps, up to this one, all ranks hold the same weights.

        The average takes in these; 0: they do not hold the same. The step was `taken` by this rank.
        """
        return int(taken)

    def count_skipped(self, training: "Counted", batch: "CountedBatch", *, taken: bool) -> int:
        """Count a step that was not `taken`; return how many more such steps all ranks know of."""
        if taken:
            return 0
        training.position.skipped += 1
        training.position.skipped_pictures += batch.count
        return 1

    def sync(self, engine: Any) -> int:
        """Let all ranks hold the same weights, between two steps; return as `agreed` does."""
        return 0

    def share_statistics(self, training: "Counted") -> None:
        """Let all ranks hold the same batch-norm statistics; they hold the same weights."""
        average_buffers(training.engine.module, training.mesh)
        if training.average:
            average_buffers(training.average.module, training.mesh)

    def complete(self, engine: Any) -> bool:
        """Tell whether the next step has everything that a step may have."""
        return True

    def per_rank(self, engine: Any) -> dict[str, Any]:
        """Return what else each rank holds alone, by its name in a checkpoint."""
        return {}

    def place(self, training: "Counted") -> tuple[int, ...]:
        """Return where this rank stands; ranks that stand alike can go on together."""
        position = training.position
        return position.epoch, position.agreed, position.step

    def counts(self, training: "Counted") -> dict[str, dict[str, int]]:
        """Return which counts in parts that each rank holds alone are those of the furthest rank.

        They are for ranks that go on together: part of a checkpoint -> key -> number.
        """
        return {}


def step_guard(exchange: ExchangeSettings, mesh: Mesh, settings: CheckpointSettings) -> StepGuard:
    """Return what watches the steps of a training with an exchange."""
    kind: type[StepGuard] = load_object(exchange.guard) if exchange.guard else StepGuard
    return kind.for_training(mesh, settings)


Item = TypeVar("Item")

WHAT_TO_TRY = (
    "lower learning_rate, lengthen warmup_epochs, or check the weights that it starts from, and "
    "train into another --out"
)
"""What may help a training that diverged."""


@dataclass
class Position:
    """Where a training stands, and what it has counted: beside the engine all that changes."""

    epoch: int = 0
    """Number of completed epochs, validated and in the history."""
    step: int = 0
    """Number of completed steps of the current epoch."""
    loss_sum: float = 0.0
    """Sum of this rank's loss over those steps."""
    agreed: bool = False
    """Whether the epoch's steps are done and the ranks agree on its batch-norm statistics."""
    skipped: int = 0
    """Number of skipped steps of the current epoch, whose loss was not finite."""
    skipped_pictures: int = 0
    """Images of the skipped steps, on all ranks."""
    bad_run: int = 0
    """Number of skipped steps in a row up to now."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row for each completed epoch."""

    def row(self, images: int, loss_sum: float, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return the history row of the current epoch, which shows so many `images`.

        `loss_sum` is that of all ranks, `figures` are those of its validation.
        """
        shown = images - self.skipped_pictures
        return {
            "epoch": self.epoch + 1,
            "loss": round(loss_sum / shown, 5) if shown else math.nan,
            **figures,
            "skipped_steps": self.skipped,
        }

    def next_epoch(self) -> None:
        """Stand before the first step of the next epoch."""
        self.epoch, self.step, self.loss_sum = self.epoch + 1, 0, 0.0
        self.agreed, self.skipped, self.skipped_pictures = False, 0, 0


class CountedBatch(Protocol):
    """A step's images."""

    @property
    def local_count(self) -> int: ...
    @property
    def count(self) -> int: ...


class Counted(Protocol):
    """A training whose steps are counted."""

    @property
    def name(self) -> str: ...
    @property
    def task(self) -> Any: ...
    @property
    def mesh(self) -> Mesh: ...
    @property
    def engine(self) -> Any: ...
    @property
    def average(self) -> Any: ...
    @property
    def position(self) -> Position: ...
    @property
    def guard(self) -> StepGuard: ...


class Lines(Protocol):
    """Sink of messages."""

    def line(self, text: str) -> None:
        """Show a message."""


def count_step(
    training: Counted, loss: float | None, batch: CountedBatch, progress: Lines, *, rate: float
) -> None:
    """Add a step to the epoch's figures.

    Raises UserError, on all ranks, after too many skipped in a row.
    """
    position, guard = training.position, training.guard
    if loss is not None:
        position.loss_sum += loss
        position.bad_run = 0
    else:
        position.bad_run += 1
    skipped = guard.count_skipped(training, batch, taken=loss is not None)
    if not skipped:
        return
    where = f"epoch {position.epoch + 1}, step {position.step}"
    if position.bad_run > guard.bad_steps:
        raise UserError(
            f"{training.name} diverged: the loss was not finite in {position.bad_run} consecutive "
            f"steps up to {where}, at a learning rate of {rate:g}; {WHAT_TO_TRY}."
        )
    words = guard.skipped_words.format(skipped)
    progress.line(f"{where}: the loss is not finite, {words} skipped")


class Waiting:
    """Counts the seconds of an epoch in which the next batch was not there yet."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time of a block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items and count the time that each took to come."""
        end = object()
        iterator = iter(items)
        while True:
            with self.counted():
                item = next(iterator, end)
            if item is end:
                return
            yield item  # type: ignore[misc]
