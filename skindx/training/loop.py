"""Train one member on all ranks: exact epochs, gradients weighted by true sample counts."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from skindx.metrics import balanced_accuracy
from skindx.models.classifier.classifier import build_classifier, load_weights
from skindx.training.checkpoint.stateful import Buffers
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.ensembles.distil import load_targets
from skindx.training.feeding.batches import steps_of
from skindx.training.feeding.reading import TrainingData, open_sets
from skindx.training.finished.member import FinishedMember
from skindx.training.memory import peak_memory
from skindx.training.parallel.mesh import Cluster
from skindx.training.position import count_step
from skindx.training.recipes.ema import WeightAverage
from skindx.training.recipes.losses import build_loss
from skindx.training.recipes.optimizer import build_optimizer
from skindx.training.recipes.starting import starting_weights
from skindx.training.step_guard import Watch
from skindx.training.task import MemberTraining
from skindx.training.tasks.classifier.task import take_steps
from skindx.training.tasks.classifier.validation import ValidationStoppedError, validate


class Progress(Protocol):
    """Where a member's progress is shown: once a step, and once an epoch."""

    def start(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Training begins, or goes on after the epochs of `history`."""

    def step(self, step: int, loss: float) -> None:
        """`step` steps are done since the first epoch; `loss` is this rank's mean."""

    def epoch(self, history: Sequence[Mapping[str, Any]], line: str) -> None:
        """One more epoch is done: the last row of `history`, told in `line`."""

    def line(self, text: str) -> None:
        """Something else is to be said."""


class Saving(Protocol):
    """Where a training is saved and found again; see `resume.py`."""

    def attach(self, training: MemberTraining, say: Callable[[str], None]) -> "AfterStep":
        """Go on from the last checkpoint, and return what is to be called after each step."""


AfterStep = Callable[[MemberTraining], None]
"""Called after each step, and again after each epoch (then `position.step` is 0), on every rank.

What it raises ends the training.
"""

AfterEpoch = Callable[[int, FinishedMember], None]
"""Called on every rank with the number of the epoch that is done, from 1, and what it gave."""


def train_member(
    settings: TrainSettings,
    member: MemberSettings,
    data: TrainingData,
    cluster: Cluster,
    progress: Progress,
    *,
    saving: Saving | None = None,
    after_epoch: AfterEpoch = lambda epoch, finished: None,
) -> tuple[FinishedMember, list[dict[str, Any]]]:
    """Train `member` and return it with one history row an epoch; every rank calls this.

    With `saving` it goes on from its last checkpoint, and StoppedError is raised when it was asked
    to stop.
    """
    training = begin(settings, member, data, cluster, progress)
    attached = saving.attach(training, progress.line) if saving else lambda training: None
    finished = go_on(training, progress, attached, after_epoch)
    training.engine.close()
    return finished, training.position.history


def begin(
    settings: TrainSettings,
    member: MemberSettings,
    data: TrainingData,
    cluster: Cluster,
    progress: Progress,
) -> MemberTraining:
    """Return `member` before its first step, the same on every rank."""
    recipe = settings.recipe_of(member)
    torch.manual_seed(member.seed)  # every rank starts from the same weights
    classifier = build_classifier(member, len(data.classes))
    weights = starting_weights(member)
    fresh = [f"net.{name}" for name in load_weights(classifier, weights)] if weights else []
    classifier.to(cluster.device)
    optimizer = build_optimizer(classifier, recipe, fresh)
    average = WeightAverage(classifier, recipe.ema) if recipe.ema else None
    pictures, validation = open_sets(data, member, settings.loader, cluster, progress.line)
    engine = Engine(
        classifier,
        optimizer,
        cluster,
        recipe.batch,
        exchange=settings.exchange,
        steps_per_epoch=steps_of(len(pictures), recipe.batch),
        say=progress.line,
    )
    if member.targets:
        pictures = replace(pictures, targets_NC=load_targets(member.targets, data.train))
    loss = build_loss(pictures.labels_N, len(data.classes), recipe).to(cluster.device)
    networks = [engine.module, *([average.module] if average else [])]
    statistics = Buffers(networks, cluster.rank, cluster.world)
    watch = Watch(cluster, settings.checkpoint.bad_steps)
    return MemberTraining(
        member,
        recipe,
        cluster,
        engine,
        average,
        pictures,
        validation,
        loss,
        len(data.classes),
        statistics,
        watch,
    )


def go_on(
    training: MemberTraining,
    progress: Progress,
    after_step: AfterStep = lambda training: None,
    after_epoch: AfterEpoch = lambda epoch, finished: None,
) -> FinishedMember:
    """Train from the training's position to its end and return the member it became."""
    position, finished = training.position, None
    per_epoch = steps_of(len(training.pictures), training.recipe.batch)
    progress.start(position.history)
    try:
        while position.epoch < training.recipe.epochs:
            started, first, training.waiting.seconds = time.monotonic(), position.step, 0.0
            for loss, own, count in take_steps(training):
                position.step += 1
                count_step(training, loss, count, progress)
                done = position.epoch * per_epoch + position.step
                progress.step(done, math.nan if loss is None else loss / own)
                after_step(training)
            speed = _speed(training, first, time.monotonic() - started)
            finished = _end_epoch(training, speed)
            progress.epoch(position.history, _line(position.history[-1]))
            after_epoch(position.epoch, finished)
            after_step(training)
        return finished or _validated(training)
    except ValidationStoppedError:
        training.watch.stop = True
        after_step(training)
        raise


def _speed(training: MemberTraining, first: int, seconds: float) -> dict[str, float]:
    """Return how fast the steps after `first` were, their part in waiting, the peak of memory."""
    share = (training.position.step - first) / training.position.step
    return {
        "pictures_per_s": round(share * len(training.pictures) / seconds, 1),
        "wait_share": round(training.waiting.seconds / seconds, 4),
        "memory_gb": round(peak_memory(training.cluster.device) / 1e9, 3),
    }


def _end_epoch(training: MemberTraining, speed: dict[str, float]) -> FinishedMember:
    """Validate, write the epoch's history row and move to the next epoch."""
    position = training.position
    if not position.agreed:
        training.engine.average_buffers()
        if training.average:
            training.engine.average_buffers(training.average.module)
        position.agreed = True
    finished = _validated(training)
    pictures = len(training.pictures) - position.skipped_pictures
    loss_sum = float(sum(training.cluster.gather(position.loss_sum)))
    loss = loss_sum / pictures if pictures else math.nan
    score = balanced_accuracy(np.exp(finished.validation_NC), finished.truth_N)
    right_N = finished.validation_NC.argmax(axis=1) == finished.truth_N
    position.history.append(
        {
            "epoch": position.epoch + 1,
            "loss": round(loss, 5),
            "val_top1": round(float(right_N.mean()), 4),
            "val_balanced": round(float(score), 4),
            **speed,
            "skipped_steps": position.skipped,
        }
    )
    position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
    position.agreed, position.skipped, position.skipped_pictures = False, 0, 0
    return finished


def _validated(training: MemberTraining) -> FinishedMember:
    training.engine.train(False)
    return validate(
        training.judged(),
        training.member,
        training.validation,
        training.cluster,
        training.watch.asked,
    )


def _line(row: dict[str, Any]) -> str:
    return (
        f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val top-1 {row['val_top1']:.3f}  "
        f"balanced {row['val_balanced']:.3f}  {row['pictures_per_s']:.0f} pictures/s"
    )
