"""Train one member on all ranks: exact epochs, gradients weighted by true sample counts."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.errors import UserError
from skindx.metrics import balanced_accuracy
from skindx.models.classifier import Classifier, build_classifier, load_weights
from skindx.training.checkpoint.stateful import Buffers
from skindx.training.engine import Cluster, Engine
from skindx.training.ensembles.distil import load_targets
from skindx.training.feeding.batches import step_seed, steps_of
from skindx.training.feeding.pictures import TrainingSet, ValidationSet, training_batches
from skindx.training.feeding.reading import TrainingData, open_sets
from skindx.training.feeding.upload import on_device
from skindx.training.feeding.waiting import Waiting
from skindx.training.member import FinishedMember
from skindx.training.memory import peak_memory
from skindx.training.recipes.ema import WeightAverage
from skindx.training.recipes.losses import build_loss
from skindx.training.recipes.mixing import Mixture, blend, draw_mixture
from skindx.training.recipes.optimizer import build_optimizer
from skindx.training.recipes.recipe import Recipe
from skindx.training.recipes.schedule import mix_at, rate_of, side_at
from skindx.training.recipes.starting import starting_weights
from skindx.training.settings import MemberSettings, TrainSettings
from skindx.training.validation import ValidationStoppedError, validate
from skindx.training.watch import Watch

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

    Stateful, so a checkpoint holds it: `engine` (weights, optimizer), `average`, `position`, and
    the batch-norm `statistics` of both networks, which differ by rank until an epoch ends.
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
    statistics: Buffers
    watch: Watch
    position: Position = field(default_factory=Position)
    waiting: Waiting = field(default_factory=Waiting)
    """How long this rank waited for pictures in the current epoch."""

    @property
    def name(self) -> str:
        """The member's."""
        return self.member.name

    @property
    def epochs(self) -> int:
        """How many there will be."""
        return self.recipe.epochs

    def judged(self) -> Classifier:
        """Return the network that is validated and kept; every rank calls this.

        It is the average, or the one in training; the next step changes either.
        """
        module = self.average.module if self.average else self.engine.whole()
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
    engine = Engine(classifier, optimizer, cluster, recipe.batch)
    pictures, validation = open_sets(data, member, settings.loader, cluster, progress.line)
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


def take_steps(training: MemberTraining) -> Iterator[tuple[float | None, int, int]]:
    """Take the steps that are left of an epoch.

    Yields this rank's summed loss, or None when the step was skipped; its pictures; all ranks'.
    """
    recipe, seed, rank = training.recipe, training.member.seed, training.cluster.rank
    epoch, first = training.position.epoch, training.position.step
    plan = training.pictures.plan(recipe.batch, seed, epoch, training.cluster)
    mixtures = _mixtures(training, plan[first:])
    with training.waiting.counted():
        training.pictures.enter(seed, epoch)
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
    loaded = on_device(loaded, training.cluster.device)
    batches = enumerate(training.waiting.over(loaded), start=first)
    for step, (pictures_LSS3, labels_L) in batches:
        torch.manual_seed(step_seed(seed, epoch, step, rank))
        inputs, targets = _mixed(training, pictures_LSS3, labels_L, mixtures[step - first])
        count = sum(len(share) for share in plan[step])
        loss_sum = _backward(training, inputs, targets, count)
        if loss_sum is not None:
            _update(training, epoch * len(plan) + step, len(plan))
        yield loss_sum, len(inputs), count


def _update(training: MemberTraining, done: int, per_epoch: int) -> None:
    """Move the weights, and their average, after `done` steps in all."""
    engine = training.engine
    engine.step(rate_of(training.recipe, done, per_epoch))
    if training.average:
        # `whole` copies a compiled network; its weights are in the module itself below ZeRO 3.
        source = engine.whole() if engine.cluster.settings.zero == 3 else engine.module
        training.average.update(source, done + 1)


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


def _mixed(
    training: MemberTraining, pictures_LSS3: Tensor, labels_L: Tensor, mixture: Mixture | None
) -> tuple[Tensor, Tensor]:
    """Return this rank's pictures and their targets, mixed."""
    if mixture is None:
        return pictures_LSS3, labels_L
    return blend(mixture, pictures_LSS3, labels_L, training.classes)


def _backward(
    training: MemberTraining, inputs: Tensor, targets: Tensor, count: int
) -> float | None:
    """Accumulate the gradients of this rank's part of `count` pictures; return its summed loss.

    None, and nothing has changed on any rank, when the loss is not finite on one of them.
    """
    total, pieces = 0.0, training.recipe.accumulate
    parts = zip(inputs.tensor_split(pieces), targets.tensor_split(pieces), strict=True)
    training.statistics.remember()
    for number, (inputs_BSS3, part) in enumerate(parts, start=1):
        logits_BC = training.engine(inputs_BSS3)
        loss_sum = training.loss(logits_BC.float(), part)
        value = training.watch.look(loss_sum)
        if value is None:
            training.engine.discard()
            training.statistics.go_back()
            return None
        training.engine.backward(loss_sum, count, last=number == pieces)
        total += value
    return total


class Counted(Protocol):
    """A training whose steps are counted: a member's, or the detector's."""

    @property
    def name(self) -> str: ...
    @property
    def position(self) -> Position: ...
    @property
    def watch(self) -> Watch: ...


class Lines(Protocol):
    """Where something is said."""

    def line(self, text: str) -> None:
        """Say it."""


def count_step(training: Counted, loss: float | None, count: int, progress: Lines) -> None:
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
            f"{training.name}: the loss was not finite in {position.bad_run} steps in a "
            f"row, up to {where}; lower its learning_rate."
        )
    progress.line(f"{where}: the loss is not finite, the step is skipped")


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
