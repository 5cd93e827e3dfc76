"""One step of a training: forward and backward in pieces, then the update of the weights."""

from typing import Any

import torch

from skindx.training.feeding.batches import step_seed, steps_of
from skindx.training.state import Training
from skindx.training.task import Batch


def take_step(training: Training[Any], batch: Batch) -> float | None:
    """Take the step at the training's position; return this rank's summed loss.

    None, and nothing has changed on any rank, when a loss or the gradient is not finite on one.
    """
    task, position = training.task, training.position
    rank = training.mesh.data.rank
    torch.manual_seed(step_seed(task.seed, position.epoch, position.step, rank))
    training.statistics.remember()
    loss_sum = _backward(training, batch)
    if loss_sum is None:
        training.engine.discard()
    elif _update(training):
        return loss_sum
    training.statistics.go_back()
    return None


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


def _update(training: Training[Any]) -> bool:
    """Move the weights and their average; False: the gradient is not finite."""
    task, position, engine = training.task, training.position, training.engine
    done = position.epoch * steps_of(task.images, task.batch) + position.step
    if not engine.step(task.rate(done)):
        return False
    if training.average:
        # `whole` copies a compiled network; its weights are in the module itself below ZeRO 3.
        whole = training.mesh.settings.zero == 3
        training.average.update(engine.whole() if whole else engine.module, done + 1)
    return True
