"""Position of a training (epoch, step, counters), and the check of each step on all ranks."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.core.errors import UserError
from skindx.training.parallel.mesh import Mesh
from skindx.training.parallel.messages import gathered


class StepGuard:
    """Is the loss finite, a checkpoint due, a stop asked for? One answer on all ranks.

    One small reduction a step: a rank that skipped or stopped alone would leave others waiting.
    Ranks that train `apart` skip steps alone, and all else they learn when they `agree`.
    """

    def __init__(
        self,
        mesh: Mesh,
        bad_steps: int,
        stop_requested: Callable[[], bool] = lambda: False,
        due: Callable[[], bool] = lambda: False,
        *,
        apart: bool = False,
        agree_s: float = 2.0,
    ) -> None:
        """Stop where any rank has `stop_requested`, and save what is `due` on the main one.

        `bad_steps` without a finite loss may follow one another. Ranks that train `apart` agree
        every `agree_s` or more often.
        """
        self._mesh, self.bad_steps = mesh, bad_steps
        self.stop_requested, self.due = stop_requested, due
        self.due_alike: Callable[[], bool] = lambda: False
        """True on all ranks at once, without a message."""
        self.stop = self.save = False
        self.apart, self._agree_s = apart, agree_s
        self._steps, self._most_steps, self._agreed_at = 0, 1, time.monotonic()
        self.skipped = self.skipped_pictures = 0
        """This rank's since ranks that train apart have agreed."""
        self.broken: Callable[[], bool] = lambda: False
        """The ranks cannot agree on anything any more."""
        self.more: Sequence[Callable[[], bool]] = ()
        """Further questions, of which all ranks learn whether any rank says yes."""
        self.flags: tuple[bool, ...] = ()
        """The last step's answers to them."""

    def interrupted(self) -> bool:
        """Tell whether this rank is to leave off what it does without the others."""
        return self.stop_requested() or self.broken()

    def check(self, loss: Tensor) -> float | None:
        """Return this rank's loss, None when some rank's is not finite; take in what was asked for.

        Only this call of a step waits for a GPU: what follows is queued while the GPU works.
        """
        local = loss.detach().float()
        if self.apart:
            alone = local.item()
            return alone if math.isfinite(alone) else None
        due = self._mesh.is_main and self.due()
        flags = torch.stack(
            [
                (~local.isfinite()).float(),
                *(local.new_full((), flag) for flag in (self.stop_requested(), due)),
                *(local.new_full((), question()) for question in self.more),
            ]
        )
        if self._mesh.data.size > 1:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        some_bad, stop, save, *more, value = torch.cat([flags, local.view(1)]).tolist()
        self.stop, self.save, self.flags = bool(stop), bool(save), tuple(map(bool, more))
        return None if some_bad else value

    def agree(self, position: "Position", *, met: bool) -> int:
        """Let ranks that train apart learn what one of them knows, where it is time for it.

        That is where they `met`, where a checkpoint is due by its steps, and after so many steps
        as the slowest rank took in `agree_s`. Return how many steps they skipped since.
        """
        self.stop, self.save, self.flags = False, False, ()
        self._steps += 1
        if not (met or self._steps >= self._most_steps or self.due_alike()):
            return 0
        due = self._mesh.is_main and self.due()
        step_s = (time.monotonic() - self._agreed_at) / self._steps
        more = (float(question()) for question in self.more)
        told = (self.stop_requested(), due, position.bad_run, step_s, *more)
        local_N = torch.tensor(
            (*told, self.skipped, self.skipped_pictures),
            dtype=torch.float64,
            device=self._mesh.device,
        )
        all_PN = gathered(local_N, self._mesh.data.size)
        stop, save, position.bad_run, step_s, *flags = all_PN.amax(0).tolist()[:-2]
        *_, skipped, pictures = map(int, all_PN.sum(0).tolist())
        self.stop, self.save, position.bad_run = bool(stop), bool(save), int(position.bad_run)
        self.flags = tuple(map(bool, flags))
        position.skipped += skipped
        position.skipped_pictures += pictures
        self._steps, self.skipped, self.skipped_pictures = 0, 0, 0
        self._most_steps = max(1, int(self._agree_s / max(step_s, 1e-6)))
        self._agreed_at = time.monotonic()
        return skipped


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
    training: Counted,
    loss: float | None,
    count: int,
    progress: Lines,
    *,
    rate: float,
    met: bool = True,
) -> None:
    """Add a step of `count` images to the epoch's figures; ranks that train apart may have `met`.

    Raises UserError, on all ranks, after too many skipped in a row.
    """
    position, guard = training.position, training.guard
    if loss is not None:
        position.loss_sum += loss
        position.bad_run = 0
    else:
        counted = guard if guard.apart else position
        counted.skipped += 1
        counted.skipped_pictures += count
        position.bad_run += 1
    skipped = guard.agree(position, met=met) if guard.apart else int(loss is None)
    if not skipped:
        return
    where = f"epoch {position.epoch + 1}, step {position.step}"
    if position.bad_run > guard.bad_steps:
        raise UserError(
            f"{training.name} diverged: the loss was not finite in {position.bad_run} steps in a "
            f"row, up to {where}, at a learning rate of {rate:g}; {WHAT_TO_TRY}."
        )
    which = f"{skipped} steps of single ranks are" if guard.apart else "the step is"
    progress.line(f"{where}: the loss is not finite, {which} skipped")


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
