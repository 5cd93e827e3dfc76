"""Position of a training (epoch, step, counters), and the check of each step on all ranks."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.core.errors import UserError
from skindx.training.parallel.mesh import Mesh


class StepGuard:
    """Is the loss finite, a checkpoint due, a stop asked for? One answer on all ranks.

    One small reduction a step: a rank that skipped or stopped alone would leave others waiting.
    """

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
        self._mesh, self.bad_steps = mesh, bad_steps
        self.stop_requested, self.due = stop_requested, due
        self.stop = self.save = False

    def check(self, loss: Tensor) -> float | None:
        """Return this rank's loss, None when some rank's is not finite; take in what was asked for.

        Only this call of a step waits for a GPU: what follows is queued while the GPU works.
        """
        local = loss.detach().float()
        due = self._mesh.is_main and self.due()
        flags = torch.stack(
            [
                (~local.isfinite()).float(),
                *(local.new_full((), flag) for flag in (self.stop_requested(), due)),
            ]
        )
        if self._mesh.data.size > 1:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        some_bad, stop, save, value = torch.cat([flags, local.view(1)]).tolist()
        self.stop, self.save = bool(stop), bool(save)
        return None if some_bad else value


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
    """Epochs that are done, validated and in the history."""
    step: int = 0
    """Steps of the current epoch that are done."""
    loss_sum: float = 0.0
    """This rank's loss over those steps."""
    agreed: bool = False
    """All steps of the epoch are done and the ranks agree on its batch-norm statistics."""
    skipped: int = 0
    """Steps of the current epoch that were not taken, since the loss was not finite."""
    skipped_pictures: int = 0
    """Images of those steps, on all ranks."""
    bad_run: int = 0
    """Such steps in a row up to now."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row for each epoch that is done."""

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


class Counted(Protocol):
    """A training whose steps are counted."""

    @property
    def name(self) -> str: ...
    @property
    def position(self) -> Position: ...
    @property
    def guard(self) -> StepGuard: ...


class Lines(Protocol):
    """Sink of messages."""

    def line(self, text: str) -> None:
        """Show a message."""


def count_step(
    training: Counted, loss: float | None, count: int, progress: Lines, *, rate: float
) -> None:
    """Add a step to the epoch's figures. Raises UserError after too many skipped in a row."""
    position = training.position
    if loss is not None:
        position.loss_sum += loss
        position.bad_run = 0
        return
    position.skipped += 1
    position.skipped_pictures += count
    position.bad_run += 1
    where = f"epoch {position.epoch + 1}, step {position.step}"
    if position.bad_run > training.guard.bad_steps:
        raise UserError(
            f"{training.name} diverged: the loss was not finite in {position.bad_run} steps in a "
            f"row, up to {where}, at a learning rate of {rate:g}; {WHAT_TO_TRY}."
        )
    progress.line(f"{where}: the loss is not finite, the step is skipped")


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
