"""Train one member on all ranks: exact epochs, gradients weighted by true sample counts."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from skindx.errors import UserError
from skindx.metrics import balanced_accuracy
from skindx.models.classifier import Classifier, build_classifier, load_weights
from skindx.training.batches import step_seed, steps_of
from skindx.training.engine import Cluster, Engine
from skindx.training.losses import build_loss
from skindx.training.member import FinishedMember
from skindx.training.pictures import TrainingSet, ValidationSet, training_batches
from skindx.training.reading import TrainingData, open_sets
from skindx.training.recipe import Recipe
from skindx.training.schedule import build_optimizer, rate_at
from skindx.training.settings import MemberSettings, TrainSettings
from skindx.training.validation import validate
from skindx.training.waiting import Waiting

# B = batch, S = side


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


@dataclass
class Position:
    """Where a training stands, and what it has counted: beside the engine all that changes."""

    epoch: int = 0
    """Epochs that are done, validated and in the history."""
    step: int = 0
    """Steps of the current epoch that are done."""
    loss_sum: float = 0.0
    """This rank's loss over those steps."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row for each epoch that is done."""


@dataclass(frozen=True)
class MemberTraining:
    """One member in training.

    Stateful, so a checkpoint holds it: `engine` (weights, optimizer; batch-norm statistics, which
    differ by rank until an epoch ends) and `position`. Everything else is made from the settings
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
    position: Position = field(default_factory=Position)
    waiting: Waiting = field(default_factory=Waiting)
    """How long this rank waited for pictures in the current epoch."""

    @property
    def classifier(self) -> Classifier:
        """The network in training, with this rank's own batch-norm statistics."""
        module = self.engine.module
        assert isinstance(module, Classifier)
        return module


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
) -> tuple[FinishedMember, list[dict[str, Any]]]:
    """Train `member` and return it with one history row an epoch; every rank calls this."""
    training = begin(settings, member, data, cluster, progress)
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
    return MemberTraining(member, recipe, cluster, engine, pictures, validation, loss)


def go_on(
    training: MemberTraining, progress: Progress, after_step: AfterStep = lambda training: None
) -> FinishedMember:
    """Train from the training's position to its end and return the member it became."""
    position, finished = training.position, None
    per_epoch = steps_of(len(training.pictures), training.recipe.batch)
    progress.start(position.history)
    while position.epoch < training.recipe.epochs:
        started, first, training.waiting.seconds = time.monotonic(), position.step, 0.0
        for loss, count in _steps(training):
            position.step += 1
            position.loss_sum += loss
            progress.step(position.epoch * per_epoch + position.step, loss / count)
            after_step(training)
        seconds = time.monotonic() - started
        share = (position.step - first) / position.step
        speed = {
            "pictures_per_s": round(share * len(training.pictures) / seconds, 1),
            "wait_share": round(training.waiting.seconds / seconds, 4),
        }
        finished = _end_epoch(training, speed)
        progress.epoch(position.history, _line(position.history[-1]))
        after_step(training)
    return finished or _validated(training)


def _steps(training: MemberTraining) -> Iterator[tuple[float, int]]:
    """Take the steps that are left of an epoch; yield this rank's summed loss and its pictures."""
    recipe, cluster, seed = training.recipe, training.cluster, training.member.seed
    epoch, first = training.position.epoch, training.position.step
    plan = training.pictures.plan(recipe.batch, seed, epoch, cluster)
    with training.waiting.counted():
        training.pictures.enter(seed, epoch)
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
    for step, (pictures_BSS3, labels_B) in enumerate(training.waiting.over(loaded), start=first):
        torch.manual_seed(step_seed(seed, epoch, step, cluster.rank))
        rate = rate_at(epoch * len(plan) + step, steps, warmup, recipe.learning_rate)
        count = sum(len(share) for share in plan[step])
        yield _step(training, pictures_BSS3, labels_B, count, rate), len(labels_B)


def _step(
    training: MemberTraining, pictures_BSS3: Tensor, labels_B: Tensor, count: int, rate: float
) -> float:
    """Take one step on this rank's part of `count` pictures; return its summed loss."""
    device = training.cluster.device
    logits_BC = training.engine(pictures_BSS3.to(device))
    loss_sum = training.loss(logits_BC.float(), labels_B.to(device))
    training.engine.backward(loss_sum, count)
    training.engine.step(rate)
    return float(loss_sum.item())


def _end_epoch(training: MemberTraining, speed: dict[str, float]) -> FinishedMember:
    """Validate, write the epoch's history row and move to the next epoch."""
    position = training.position
    loss = float(sum(training.cluster.gather(position.loss_sum))) / len(training.pictures)
    if not np.isfinite(loss):
        raise UserError(
            f"{training.member.name}: the loss became {loss} in epoch {position.epoch + 1}; "
            "lower recipe.learning_rate."
        )
    training.engine.average_buffers()
    finished = _validated(training)
    score = balanced_accuracy(np.exp(finished.validation_NC), finished.truth_N)
    right_N = finished.validation_NC.argmax(axis=1) == finished.truth_N
    position.history.append(
        {
            "epoch": position.epoch + 1,
            "loss": round(loss, 5),
            "val_top1": round(float(right_N.mean()), 4),
            "val_balanced": round(float(score), 4),
            **speed,
        }
    )
    position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
    return finished


def _validated(training: MemberTraining) -> FinishedMember:
    training.engine.train(False)
    return validate(training.classifier, training.member, training.validation, training.cluster)


def _line(row: dict[str, Any]) -> str:
    return (
        f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val top-1 {row['val_top1']:.3f}  "
        f"balanced {row['val_balanced']:.3f}  {row['pictures_per_s']:.0f} pictures/s"
    )
