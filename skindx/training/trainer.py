"""Train one member on all ranks: exact epochs, gradients weighted by true sample counts."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.errors import UserError
from skindx.metrics import balanced_accuracy
from skindx.models.classifier import Classifier, build_classifier, load_weights
from skindx.training.batches import step_seed
from skindx.training.ema import WeightAverage
from skindx.training.engine import Cluster, Engine
from skindx.training.losses import build_loss
from skindx.training.member import FinishedMember
from skindx.training.mixing import Mixture, blend, draw_mixture
from skindx.training.optimizer import build_optimizer
from skindx.training.pictures import TrainingSet, ValidationSet, training_batches
from skindx.training.reading import TrainingData, open_sets
from skindx.training.recipe import Recipe
from skindx.training.schedule import mix_at, rate_of, side_at
from skindx.training.settings import MemberSettings, TrainSettings
from skindx.training.starting import starting_weights
from skindx.training.validation import validate

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
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row for each epoch that is done."""


@dataclass(frozen=True)
class MemberTraining:
    """One member in training.

    Stateful, so a checkpoint holds it: `engine` (weights, optimizer; batch-norm statistics, which
    differ by rank until an epoch ends), `average` (its statistics likewise) and `position`.
    Everything else is made from the settings alone: order and shares of the pictures, their side,
    crops, changes and mixture, the learning rate and torch's random numbers (dropout) are pure
    functions of (seed, epoch, step), of the picture's number or of the rank, so that a training
    that starts anywhere goes on to the bit.
    """

    member: MemberSettings
    recipe: Recipe
    cluster: Cluster
    engine: Engine
    average: WeightAverage | None
    pictures: TrainingSet
    validation: ValidationSet
    loss: nn.Module
    classes: int
    position: Position = field(default_factory=Position)

    def judged(self) -> Classifier:
        """Return the network that is validated and kept; every rank calls this.

        It is the average, or the one in training; the next step changes either.
        """
        module = self.average.module if self.average else self.engine.whole()
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
    weights = starting_weights(member)
    fresh = [f"net.{name}" for name in load_weights(classifier, weights)] if weights else []
    classifier.to(cluster.device)
    optimizer = build_optimizer(classifier, recipe, fresh)
    average = WeightAverage(classifier, recipe.ema) if recipe.ema else None
    engine = Engine(classifier, optimizer, cluster, recipe.batch)
    pictures, validation = open_sets(data, member, settings.loader, cluster, progress.line)
    loss = build_loss(pictures.labels_N, len(data.classes), recipe).to(cluster.device)
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
    )


def go_on(
    training: MemberTraining, progress: Progress, after_step: AfterStep = lambda training: None
) -> FinishedMember:
    """Train from the training's position to its end and return the member it became."""
    position, finished = training.position, None
    while position.epoch < training.recipe.epochs:
        started, first = time.monotonic(), position.step
        for loss, count in _steps(training):
            position.step += 1
            position.loss_sum += loss
            progress.step(loss / count)
            after_step(training)
        share = (position.step - first) / position.step
        pictures_per_s = share * len(training.pictures) / (time.monotonic() - started)
        finished = _end_epoch(training, pictures_per_s)
        progress.line(_line(position.history[-1]))
        after_step(training)
    return finished or _validated(training)


def _steps(training: MemberTraining) -> Iterator[tuple[float, int]]:
    """Take the steps that are left of an epoch; yield this rank's summed loss and its pictures."""
    recipe, seed, rank = training.recipe, training.member.seed, training.cluster.rank
    epoch, first = training.position.epoch, training.position.step
    plan = training.pictures.plan(recipe.batch, seed, epoch, training.cluster)
    mixtures = _mixtures(training, plan[first:])
    loaded = training_batches(
        training.pictures,
        [
            np.concatenate([shares[rank], mixture.borrowed]) if mixture else shares[rank]
            for shares, mixture in zip(plan[first:], mixtures, strict=True)
        ],
        recipe.augment,
        side=side_at(recipe, training.member.preprocess.size, epoch),
        seed=seed,
        epoch=epoch,
    )
    training.engine.train()
    for step, (pictures_LSS3, labels_L) in enumerate(loaded, start=first):
        torch.manual_seed(step_seed(seed, epoch, step, rank))
        inputs, targets = _on_device(training, pictures_LSS3, labels_L, mixtures[step - first])
        done = epoch * len(plan) + step
        loss_sum = _backward(training, inputs, targets, sum(len(share) for share in plan[step]))
        training.engine.step(rate_of(recipe, done, len(plan)))
        if training.average:
            training.average.update(training.engine.whole(), done + 1)
        yield loss_sum, len(inputs)


def _mixtures(
    training: MemberTraining, plan: list[list[NDArray[np.int64]]]
) -> list[Mixture | None]:
    """Return how this rank mixes each step that is left of the epoch."""
    position, sharded = training.position, training.pictures.sharded
    mix = mix_at(training.recipe, position.epoch)
    if mix is None:
        return [None] * len(plan)
    return [
        draw_mixture(
            mix,
            shares,
            training.cluster.rank,
            (training.member.seed, position.epoch, step),
            sharded=sharded,
        )
        for step, shares in enumerate(plan, start=position.step)
    ]


def _on_device(
    training: MemberTraining, pictures_LSS3: Tensor, labels_L: Tensor, mixture: Mixture | None
) -> tuple[Tensor, Tensor]:
    """Return this rank's pictures and their targets, mixed, on its device."""
    device = training.cluster.device
    pictures_LSS3, labels_L = pictures_LSS3.to(device), labels_L.to(device)
    if mixture is None:
        return pictures_LSS3, labels_L
    return blend(mixture, pictures_LSS3, labels_L, training.classes)


def _backward(training: MemberTraining, inputs: Tensor, targets: Tensor, count: int) -> float:
    """Accumulate the gradients of this rank's part of `count` pictures; return its summed loss."""
    total, pieces = 0.0, training.recipe.accumulate
    parts = zip(inputs.tensor_split(pieces), targets.tensor_split(pieces), strict=True)
    for number, (inputs_BSS3, part) in enumerate(parts, start=1):
        logits_BC = training.engine(inputs_BSS3)
        loss_sum = training.loss(logits_BC.float(), part)
        training.engine.backward(loss_sum, count, last=number == pieces)
        total += loss_sum.item()
    return total


def _end_epoch(training: MemberTraining, pictures_per_s: float) -> FinishedMember:
    """Validate, write the epoch's history row and move to the next epoch."""
    position = training.position
    loss = float(sum(training.cluster.gather(position.loss_sum))) / len(training.pictures)
    if not np.isfinite(loss):
        raise UserError(
            f"{training.member.name}: the loss became {loss} in epoch {position.epoch + 1}; "
            "lower recipe.learning_rate."
        )
    training.engine.average_buffers()
    if training.average:
        training.engine.average_buffers(training.average.module)
    finished = _validated(training)
    score = balanced_accuracy(np.exp(finished.validation_NC), finished.truth_N)
    right_N = finished.validation_NC.argmax(axis=1) == finished.truth_N
    position.history.append(
        {
            "epoch": position.epoch + 1,
            "loss": round(loss, 5),
            "val_top1": round(float(right_N.mean()), 4),
            "val_balanced": round(float(score), 4),
            "pictures_per_s": round(pictures_per_s, 1),
        }
    )
    position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
    return finished


def _validated(training: MemberTraining) -> FinishedMember:
    training.engine.train(False)
    return validate(training.judged(), training.member, training.validation, training.cluster)


def _line(row: dict[str, Any]) -> str:
    return (
        f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val top-1 {row['val_top1']:.3f}  "
        f"balanced {row['val_balanced']:.3f}  {row['pictures_per_s']:.0f} pictures/s"
    )
