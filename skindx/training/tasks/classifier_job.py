"""A member's training as a job of the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from skindx.data.loader.batches import partition, steps_of
from skindx.data.manifest import Record
from skindx.models.classifier.classifier import build_classifier, load_weights
from skindx.models.classifier.pretrained import pretrained_file
from skindx.training.callbacks import CallbackList, member_callbacks
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.checkpoint.finished import FinishedMember, is_finished, save_member
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.registry import build_preconditioner, change_network
from skindx.training.state import Row, Training, setup
from skindx.training.tasks.classifier_task import ClassifierTask
from skindx.training.tasks.losses import drawn_loss
from skindx.training.tasks.open_sets import OpenImages, TrainingData, open_sets
from skindx.training.tasks.optimizer import WeightAverage, build_optimizer


@dataclass(frozen=True)
class MemberJob:
    """One member of a run."""

    run: Path
    dataset: Path
    settings: TrainSettings
    member: MemberSettings
    records: Sequence[Record]
    """Records of the whole dataset."""
    classes: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"member {self.member.name}"

    @property
    def key(self) -> str:
        return self.member.name

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.settings, self.member, self.dataset)

    @cached_property
    def data(self) -> TrainingData:
        """Training and validation images of the member."""
        train, val = partition(self.records, self.member.fold, self.settings.folds)
        return TrainingData(self.dataset, train, val, self.classes)

    def is_finished(self) -> bool:
        """True when it is in the run. Raises UserError when it was trained otherwise."""
        return is_finished(self.run, self.member.name, self.fingerprint)

    def callbacks(self, *, shown: bool) -> CallbackList:
        images = len(self.data.train)
        return member_callbacks(self.run, self.settings, self.member, images, shown=shown)

    def setup(self, mesh: Mesh, say: Callable[[str], None]) -> Training[FinishedMember]:
        return setup_member(self.settings, self.member, self.data, mesh, say)

    def save(self, result: FinishedMember, history: list[Row]) -> None:
        save_member(self.run, self.member.name, result, history, self.fingerprint)


def setup_member(
    settings: TrainSettings,
    member: MemberSettings,
    data: TrainingData,
    mesh: Mesh,
    say: Callable[[str], None],
    *,
    open_images: OpenImages = open_sets,
) -> Training[FinishedMember]:
    """Return `member` before its first step, the same on every rank."""
    recipe = settings.recipe_of(member)
    if (ranks := mesh.data.size) > 1:
        say(f"{recipe.batch} images a step, {recipe.batch / ranks:.4g} on each of {ranks} ranks")
    torch.manual_seed(member.seed)  # every rank starts from the same weights
    classifier = build_classifier(member, len(data.classes))
    weights = starting_weights(member)
    fresh = [f"net.{name}" for name in load_weights(classifier, weights)] if weights else []
    classifier.to(mesh.device)
    side = member.preprocess.size
    black_1SS3 = torch.zeros(1, side, side, 3, dtype=torch.uint8, device=mesh.device)
    change_network(classifier, mesh, black_1SS3, recipe.batch, say)
    optimizer = build_optimizer(classifier, recipe, fresh)
    average = WeightAverage(classifier, recipe.ema) if recipe.ema else None
    training, validation = open_images(data, member, settings.loader, mesh, say)
    task = ClassifierTask(member, recipe, mesh, training, validation, len(data.classes))
    method = build_preconditioner(
        recipe,
        classifier,
        mesh,
        draw=drawn_loss(task.criterion),
        seed=member.seed,
        steps_per_epoch=steps_of(task.images, task.batch),
        peak_rate=recipe.peak_rate,
        say=say,
    )
    return setup(
        task,
        classifier,
        optimizer,
        average=average,
        settings=settings,
        mesh=mesh,
        say=say,
        method=method,
    )


def starting_weights(member: MemberSettings) -> Path | None:
    """Return the file that a member starts from, fetched if it must be; None: random weights.

    Raises UserError when timm's weights are wanted and cannot be had.
    """
    if member.pretrained:
        return pretrained_file(member)
    return member.weights
