"""The training loop of every task: epochs, steps, checkpoints, stops, history."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from skindx.core.errors import UserError
from skindx.core.state_checks import is_finite
from skindx.data.loader.batches import step_seed, steps_of
from skindx.training.checkpoint.resume import share_weights
from skindx.training.parallel.mesh import peak_memory
from skindx.training.position import WHAT_TO_TRY, count_step
from skindx.training.state import (
    Batch,
    DivergedError,
    EpochSpeed,
    Result_co,
    Row,
    Training,
    ValidationStoppedError,
)


def take_step(training: Training[Any], batch: Batch) -> float | None:
    """Take the step at the training's position; return this rank's summed loss.

    None, and nothing has changed, when a loss or the gradient is not finite on a rank to which
    the training's guard listens: on any, as it stands.
    """
    task, position = training.task, training.position
    rank = training.mesh.data.rank
    torch.manual_seed(step_seed(task.seed, position.epoch, position.step, rank))
    training.statistics.remember()
    engine, taken = training.engine, False
    try:
        loss_sum = _backward(training, batch)
        if loss_sum is None:
            engine.skip()
        else:
            done = position.epoch * steps_of(task.images, task.batch) + position.step
            taken = engine.step(task.rate(done))
    finally:
        if not taken:
            training.statistics.go_back()
    average_agreed(training, training.guard.agreed(engine, taken=taken), 1)
    return loss_sum if taken else None


def _backward(training: Training[Any], batch: Batch) -> float | None:
    """Accumulate the gradients of this rank's part; return its summed loss if all are finite."""
    total, pieces = 0.0, batch.pieces()
    for number, (inputs, targets) in enumerate(pieces, start=1):
        loss_sum = training.task.loss(training.engine(inputs), targets, batch.count)
        value = training.guard.check(loss_sum)
        if value is None:
            return None
        training.engine.backward(loss_sum, batch.count, last=number == len(pieces))
        total += value
    return total


def average_agreed(training: Training[Any], agreed: int, ahead: int = 0) -> None:
    """Add the weights that all ranks hold to the average, once for each step that led to them.

    So it is the same on all ranks, and decays by steps. The last one is `ahead` of the position.
    """
    engine, average, position = training.engine, training.average, training.position
    if not average or not agreed:
        return
    before = position.epoch * steps_of(training.task.images, training.task.batch)
    done = before + position.step + ahead
    # `whole` copies a compiled network; its weights are in the module itself below ZeRO 3.
    network = engine.whole() if training.mesh.settings.zero == 3 else engine.module
    for step in range(done - agreed, done):
        average.update(network, step + 1)


AfterStep = Callable[[Training[Any]], None]
"""Called after each step, and again after each epoch (then `position.step` is 0), on every rank.

What it raises ends the training.
"""


class Callbacks(Protocol):
    """Functions that are called during a training, to show and to record it."""

    def start(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Training begins, or goes on after the epochs of `history`."""

    def step(self, step: int, loss: float) -> None:
        """`step` steps are done since the first epoch; `loss` is this rank's mean."""

    def epoch(self, history: Sequence[Mapping[str, Any]], line: str) -> None:
        """One more epoch is done: the last row of `history`, which `line` sums up."""

    def line(self, text: str) -> None:
        """Show a message."""


class Saving(Protocol):
    """Where a training is saved and found again; see `checkpoint/resume.py`."""

    def attach(self, training: Training[Any], say: Callable[[str], None]) -> AfterStep:
        """Go on from the last checkpoint, and return what is to be called after each step."""

    def settle(self, *, leaving: bool) -> None:
        """Wait for what is still being written; `leaving` after an error, also of a lost rank."""


def train(
    training: Training[Result_co], callbacks: Callbacks, saving: Saving | None = None
) -> tuple[Result_co, list[Row]]:
    """Train to the end; return the result and one history row an epoch; every rank calls this.

    With `saving` it goes on from its last checkpoint, and StoppedError is raised when it was asked
    to stop.
    """
    after_step = saving.attach(training, callbacks.line) if saving else lambda training: None
    leaving = True
    try:
        result = fit(training, callbacks, after_step)
        leaving = False
    finally:
        if saving:
            saving.settle(leaving=leaving)
    training.engine.close()
    return result, training.position.history


def fit(
    training: Training[Result_co],
    callbacks: Callbacks,
    after_step: AfterStep = lambda training: None,
) -> Result_co:
    """Train from the training's position to its end and return the task's result."""
    task, position = training.task, training.position
    spent = float(position.history[-1].get("seconds", 0.0)) if position.history else 0.0
    began = time.monotonic() - spent
    callbacks.start(position.history)
    try:
        while position.epoch < task.epochs:
            if enough := task.enough(position.history):
                callbacks.line(f"{position.epoch} of {task.epochs} epochs are enough: {enough}")
                break
            started, first = time.monotonic(), position.step
            take_steps(training, callbacks, after_step)
            now = time.monotonic()
            end_epoch(training, _speed(training, first, now - started, now - began))
            callbacks.epoch(position.history, task.line(position.history[-1]))
            after_step(training)
        training.engine.train(False)
        return task.result(training.evaluated(), training.guard.interrupted)
    except ValidationStoppedError:
        training.guard.stop = True
        after_step(training)
        raise


def take_steps(training: Training[Any], callbacks: Callbacks, after_step: AfterStep) -> None:
    """Take the steps that are left of the epoch."""
    task, position = training.task, training.position
    steps = steps_of(task.images, task.batch)
    before = position.epoch * steps
    training.waiting.seconds = 0.0
    training.engine.train()
    take = training.take or take_step
    for batch in training.waiting.over(task.batches(position.epoch, position.step)):
        loss = take(training, batch)
        position.step += 1
        count_step(training, loss, batch, callbacks, rate=last_rate(training))
        callbacks.step(
            before + position.step, math.nan if loss is None else loss / batch.local_count
        )
        training.engine.check_ranks()
        after_step(training)


def _speed(training: Training[Any], first: int, seconds: float, in_all: float) -> EpochSpeed:
    """Return how fast the steps after `first` were, which took `seconds`."""
    share = (training.position.step - first) / training.position.step
    return EpochSpeed(
        images_per_s=round(share * training.task.images / seconds, 1),
        wait_share=round(training.waiting.seconds / seconds, 4),
        memory_gb=round(peak_memory(training.mesh.device) / 1e9, 3),
        seconds=round(in_all, 1),
    )


def end_epoch(training: Training[Any], speed: EpochSpeed) -> None:
    """Validate, write the epoch's history row and move to the next epoch."""
    task, position = training.task, training.position
    if not position.agreed:
        average_agreed(training, training.guard.sync(training.engine))
        share_weights(training.engine.module, training.engine.optimizer, training.mesh)
        training.guard.share_statistics(training)
        position.agreed = True
    training.engine.train(False)
    network = training.evaluated()
    refuse_diverged(training, network)
    try:
        figures = task.validate(network, speed, training.guard.interrupted)
    except DivergedError as error:
        raise diverged(training, str(error)) from None
    loss_sum = float(sum(training.mesh.gather(position.loss_sum)))
    position.history.append(position.row(task.images, loss_sum, figures))
    position.next_epoch()


def refuse_diverged(training: Training[Any], network: nn.Module) -> None:
    """Raise UserError, on all ranks, where a number of the network is no longer finite on one."""
    bad = not all(map(is_finite, network.state_dict().values()))
    if any(training.mesh.gather(bad)):
        raise diverged(training, "weights")


def diverged(training: Training[Any], what: str) -> UserError:
    """Return the error of a training whose weights or answers are no longer finite."""
    position = training.position
    where = f"epoch {position.epoch + 1}, step {position.step}"
    return UserError(
        f"{training.name} diverged: its {what} are not finite after {where}, at a learning rate "
        f"of {last_rate(training):g}; {WHAT_TO_TRY}."
    )


def last_rate(training: Training[Any]) -> float:
    """Return the learning rate of the step before the training's position."""
    task, position = training.task, training.position
    before = position.epoch * steps_of(task.images, task.batch)
    return task.rate(max(0, before + position.step - 1))
