"""Train one member on all ranks: exact epochs, gradients weighted by true sample counts."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from skindx.errors import UserError
from skindx.metrics import balanced_accuracy
from skindx.models.classifier import Classifier, build_classifier, load_weights
from skindx.training.batches import step_seed
from skindx.training.checkpoint.stateful import Buffers
from skindx.training.engine import Cluster, Engine
from skindx.training.losses import build_loss
from skindx.training.member import FinishedMember
from skindx.training.pictures import TrainingSet, ValidationSet, training_batches
from skindx.training.reading import TrainingData, open_sets
from skindx.training.recipe import Recipe
from skindx.training.schedule import build_optimizer, rate_at
from skindx.training.settings import MemberSettings, TrainSettings
from skindx.training.validation import ValidationStopped, validate
from skindx.training.watch import Watch

# B = batch, S = side


class Progress(Protocol):
    """Where a member's progress is shown: once a step, and once an epoch."""

    def step(self, loss: float) -> None:
        """One step is done; `loss` is this rank's mean."""

    def line(self, text: str) -> None:
        """One epoch is done; `text` has its figures."""


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
    """Pictures of those steps, on all ranks."""
    bad_run: int = 0
    """Such steps in a row up to now."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row for each epoch that is done."""


@dataclass(frozen=True)
class MemberTraining:
    """One member in training.

    Stateful, so a checkpoint holds it: `engine` (weights, optimizer), `statistics` (batch norm's,
    which differ by rank until an epoch ends) and `position`. Everything else is made from the settings
    alone: order and shares of the pictures, their crops and changes, the learning rate and torch's
    random numbers (dropout) are pure functions of (seed, epoch, step), of the picture's number or
    of the rank, so that a training that starts anywhere goes on to the bit.
    """

    member: MemberSettings
    recipe: Recipe
    cluster: Cluster
    engine: Engine
    pictures: TrainingSet
    validation: ValidationSet
    loss: nn.Module
    statistics: Buffers
    watch: Watch
    position: Position = field(default_factory=Position)

    @property
    def classifier(self) -> Classifier:
        """The network in training, with this rank's own batch-norm statistics."""
        module = self.engine.module
        assert isinstance(module, Classifier)
        return module


class Saving(Protocol):
    """Where a training is saved and found again; see `resume.py`."""

    def attach(self, training: MemberTraining, say: Callable[[str], None]) -> "AfterStep":
        """Go on from the last checkpoint, and return what is to be called after each step."""


AfterStep = Callable[[MemberTraining], None]
"""Called after each step, and again after each epoch (then `position.step` is 0), on every rank.

What it raises ends the training.
"""


def train_member(
    settings: TrainSettings,
    member: MemberSettings,
    data: TrainingData,
    cluster: Cluster,
    progress: Progress,
    saving: Saving | None = None,
) -> tuple[FinishedMember, list[dict[str, Any]]]:
    """Train `member` and return it with one history row an epoch; every rank calls this.

    With `saving` it goes on from its last checkpoint. Raises Stopped when it was asked to stop.
    """
    training = begin(settings, member, data, cluster, progress)
    if saving:
        finished = go_on(training, progress, saving.attach(training, progress.line))
    else:
        finished = go_on(training, progress)
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
    fresh = [f"net.{name}" for name, _ in classifier.net.named_parameters()]
    if member.weights:
        fresh = [f"net.{name}" for name in load_weights(classifier, member.weights)]
    classifier.to(cluster.device)
    optimizer = build_optimizer(classifier, recipe, fresh)
    engine = Engine(classifier, optimizer, cluster, recipe.batch)
    pictures, validation = open_sets(data, member, settings.loader, cluster, progress.line)
    loss = build_loss(pictures.labels_N, len(data.classes), recipe).to(cluster.device)
    statistics = Buffers(engine.module, cluster.rank, cluster.world)
    watch = Watch(cluster, settings.checkpoint.bad_steps)
    return MemberTraining(
        member, recipe, cluster, engine, pictures, validation, loss, statistics, watch
    )


def go_on(
    training: MemberTraining, progress: Progress, after_step: AfterStep = lambda training: None
) -> FinishedMember:
    """Train from the training's position to its end and return the member it became."""
    position, finished = training.position, None
    try:
        while position.epoch < training.recipe.epochs:
            started, first = time.monotonic(), position.step
            for loss, own, count in _steps(training):
                position.step += 1
                _count(training, loss, count, progress)
                progress.step(math.nan if loss is None else loss / own)
                after_step(training)
            share = (position.step - first) / position.step
            pictures_per_s = share * len(training.pictures) / (time.monotonic() - started)
            finished = _end_epoch(training, pictures_per_s)
            progress.line(_line(position.history[-1]))
            after_step(training)
        return finished or _validated(training)
    except ValidationStopped:
        training.watch.stop = True
        after_step(training)
        raise


def _steps(training: MemberTraining) -> Iterator[tuple[float | None, int, int]]:
    """Take the steps that are left of an epoch.

    Yields this rank's summed loss, or None when the step was skipped; its pictures; all ranks'.
    """
    recipe, cluster, seed = training.recipe, training.cluster, training.member.seed
    epoch, first = training.position.epoch, training.position.step
    plan = training.pictures.plan(recipe.batch, seed, epoch, cluster)
    loaded = training_batches(
        training.pictures,
        [shares[cluster.rank] for shares in plan[first:]],
        recipe.augment,
        side=training.member.preprocess.size,
        seed=seed,
        epoch=epoch,
    )
    steps, warmup = len(plan) * recipe.epochs, int(len(plan) * recipe.warmup_epochs)
    training.engine.train()
    for step, (pictures_BSS3, labels_B) in enumerate(loaded, start=first):
        torch.manual_seed(step_seed(seed, epoch, step, cluster.rank))
        rate = rate_at(epoch * len(plan) + step, steps, warmup, recipe.learning_rate)
        count = sum(len(share) for share in plan[step])
        yield _step(training, pictures_BSS3, labels_B, count, rate), len(labels_B), count


def _step(
    training: MemberTraining, pictures_BSS3: Tensor, labels_B: Tensor, count: int, rate: float
) -> float | None:
    """Take one step on this rank's part of `count` pictures and return its summed loss.

    None, and nothing has changed on any rank, when the loss is not finite on one of them.
    """
    device = training.cluster.device
    training.statistics.remember()
    logits_BC = training.engine(pictures_BSS3.to(device))
    loss_sum = training.loss(logits_BC.float(), labels_B.to(device))
    if not training.watch.finite(loss_sum):
        training.engine.discard()
        training.statistics.go_back()
        return None
    training.engine.backward(loss_sum, count)
    training.engine.step(rate)
    return float(loss_sum.item())


def _count(training: MemberTraining, loss: float | None, count: int, progress: Progress) -> None:
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
    if position.bad_run > training.watch.bad_steps:
        raise UserError(
            f"{training.member.name}: the loss was not finite in {position.bad_run} steps in a "
            f"row, up to {where}; lower recipe.learning_rate."
        )
    progress.line(f"{where}: the loss is not finite, the step is skipped")


def _end_epoch(training: MemberTraining, pictures_per_s: float) -> FinishedMember:
    """Validate, write the epoch's history row and move to the next epoch."""
    position = training.position
    if not position.agreed:
        training.engine.average_buffers()
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
            "pictures_per_s": round(pictures_per_s, 1),
            "skipped_steps": position.skipped,
        }
    )
    position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
    position.agreed, position.skipped, position.skipped_pictures = False, 0, 0
    return finished


def _validated(training: MemberTraining) -> FinishedMember:
    training.engine.train(False)
    classifier = training.engine.whole()
    assert isinstance(classifier, Classifier)
    return validate(
        classifier, training.member, training.validation, training.cluster, training.watch.asked
    )


def _line(row: dict[str, Any]) -> str:
    return (
        f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val top-1 {row['val_top1']:.3f}  "
        f"balanced {row['val_balanced']:.3f}  {row['pictures_per_s']:.0f} pictures/s"
    )
