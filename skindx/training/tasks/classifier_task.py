"""Classification as a task: mixed images and their labels, the recipe's loss, validation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.data.loader.batches import steps_of
from skindx.metrics import balanced_accuracy
from skindx.models.classifier.classifier import Classifier
from skindx.models.ensemble import Member
from skindx.training.checkpoint.finished import FinishedMember
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.state import (
    Batch,
    DivergedError,
    EpochSpeed,
    Piece,
    Row,
    ValidationStoppedError,
)
from skindx.training.tasks.image_sets import TrainingSet, on_device, training_batches
from skindx.training.tasks.losses import build_loss
from skindx.training.tasks.mixing import Mixture, blend, draw_mixture
from skindx.training.tasks.open_sets import ValidationSet


def figures(finished: FinishedMember, speed: EpochSpeed) -> dict[str, Any]:
    """Return accuracy on the validation images, and the speed. Raises DivergedError."""
    probabilities_NC = np.exp(finished.validation_NC)
    if not np.isfinite(probabilities_NC).all():
        raise DivergedError("answers")
    score = balanced_accuracy(probabilities_NC, finished.truth_N)
    right_N = finished.validation_NC.argmax(axis=1) == finished.truth_N
    return {
        "val_top1": round(float(right_N.mean()), 4),
        "val_balanced": round(float(score), 4),
        "pictures_per_s": speed.images_per_s,
        "wait_share": speed.wait_share,
        "memory_gb": speed.memory_gb,
    }


def epoch_line(row: Row) -> str:
    return (
        f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val top-1 {row['val_top1']:.3f}  "
        f"balanced {row['val_balanced']:.3f}  {row['pictures_per_s']:.0f} images/s"
    )


# N = images, C = classes


def validate(
    classifier: Classifier,
    member: MemberSettings,
    validation: ValidationSet,
    mesh: Mesh,
    stop_requested: Callable[[], bool] = lambda: False,
) -> FinishedMember:
    """Return the classifier's weights and its predictions of all validation images.

    `classifier` is in evaluation mode, `validation` this rank's share; every rank calls this.
    Raises ValidationStoppedError when any rank has `stop_requested` meanwhile.
    """
    predictor = Member(member.name, classifier, member.preprocess)
    try:
        log_NC = (
            predictor.log_probabilities_of_squares(_until(stop_requested, validation.squares()))
            if len(validation)
            else None
        )
        stopped = False
    except ValidationStoppedError:
        log_NC, stopped = None, True
    if any(mesh.gather(stopped)):
        raise ValidationStoppedError
    validation_NC, truth_N = _together(mesh.gather((log_NC, validation.labels_N)))
    weights = classifier.net.state_dict()
    state = {name: tensor.detach().clone() for name, tensor in weights.items()}
    return FinishedMember(state, validation_NC, truth_N)


def _until(
    stop_requested: Callable[[], bool], batches: Iterable[NDArray[np.uint8]]
) -> Iterator[NDArray[np.uint8]]:
    for batch in batches:
        if stop_requested():
            raise ValidationStoppedError
        yield batch


def _together(
    parts: list[tuple[NDArray[np.float64] | None, NDArray[np.int64]]],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Put every rank's rows back in their places: rank r took rows r, r + P, … of the manifest."""
    count, world = sum(len(labels) for _, labels in parts), len(parts)
    classes = next(log.shape[1] for log, _ in parts if log is not None)
    validation_NC = np.empty((count, classes))
    truth_N = np.empty(count, dtype=np.int64)
    for rank, (log, labels) in enumerate(parts):
        if log is not None:
            validation_NC[rank::world] = log
            truth_N[rank::world] = labels
    return validation_NC, truth_N


# B = batch, L = a rank's part of it with what it borrows, S = side


@dataclass
class ClassifierTask:
    """One member, trained on all ranks."""

    member: MemberSettings
    recipe: Recipe
    mesh: Mesh
    training: TrainingSet
    validation: ValidationSet
    classes: int
    criterion: nn.Module = field(init=False)
    """The recipe's loss: by default cross-entropy with smoothed labels."""
    finished: FinishedMember | None = field(default=None, init=False)
    """Result of the last validation in this process."""

    def __post_init__(self) -> None:
        criterion = build_loss(self.training.labels_N, self.classes, self.recipe)
        self.criterion = criterion.to(self.mesh.device)

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def seed(self) -> int:
        return self.member.seed

    @property
    def epochs(self) -> int:
        return self.recipe.epochs

    @property
    def images(self) -> int:
        return len(self.training)

    @property
    def batch(self) -> int:
        return self.recipe.batch

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        rank = self.mesh.data.rank
        plan = self.training.plan(self.batch, self.seed, epoch, self.mesh)[first:]
        mixtures = self._mixtures(plan, epoch, first)
        self.training.enter(self.seed, epoch)
        loaded = training_batches(
            self.training,
            [
                np.concatenate([shares[rank], mixture.borrowed]) if mixture else shares[rank]
                for shares, mixture in zip(plan, mixtures, strict=True)
            ],
            self.recipe.augment,
            self.member.preprocess.bars,
            side=self.recipe.side_at(self.member.preprocess.size, epoch),
            seed=self.seed,
            epoch=epoch,
        )
        uploaded = on_device(loaded, self.mesh.device)
        for shares, mixture, (images_LSS3, labels_L) in zip(plan, mixtures, uploaded, strict=True):
            yield Batch(
                self._pieces(images_LSS3, labels_L, mixture),
                local_count=len(shares[rank]),
                count=sum(len(share) for share in shares),
            )

    def _mixtures(
        self, plan: Sequence[Sequence[NDArray[np.int64]]], epoch: int, first: int
    ) -> list[Mixture | None]:
        """Return how this rank mixes each step of the plan; None by default, for each."""
        mix = self.recipe.mix_at(epoch)
        if mix is None:
            return [None] * len(plan)
        rank, sharded = self.mesh.data.rank, self.training.sharded
        return [
            draw_mixture(mix, shares, rank, (self.seed, epoch, step), sharded=sharded)
            for step, shares in enumerate(plan, start=first)
        ]

    def _pieces(
        self, images_LSS3: Tensor, labels_L: Tensor, mixture: Mixture | None
    ) -> Callable[[], Sequence[Piece]]:
        """Return what mixes a step's images and targets and cuts them into the recipe's pieces."""

        def pieces() -> Sequence[Piece]:
            inputs, targets = images_LSS3, labels_L
            if mixture:
                inputs, targets = blend(mixture, images_LSS3, labels_L, self.classes)
            # Each is 1 by default: `shares` is more only where ranks were lost.
            count = self.recipe.accumulate * self.mesh.shares
            return list(zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True))

        return pieces

    def loss(self, outputs: Any, targets: Any, count: int) -> Tensor:
        loss_sum: Tensor = self.criterion(outputs.float(), targets)
        return loss_sum

    def rate(self, step: int) -> float:
        return self.recipe.rate_at(step, steps_of(self.images, self.batch))

    def validate(
        self, network: nn.Module, speed: EpochSpeed, stop_requested: Callable[[], bool]
    ) -> dict[str, Any]:
        self.finished = self._validate(network, stop_requested)
        return figures(self.finished, speed)

    def _validate(self, network: nn.Module, stop_requested: Callable[[], bool]) -> FinishedMember:
        assert isinstance(network, Classifier)
        return validate(network, self.member, self.validation, self.mesh, stop_requested)

    def enough(self, history: Sequence[Row]) -> str:
        return ""

    def line(self, row: Row) -> str:
        return epoch_line(row)

    def result(self, network: nn.Module, stop_requested: Callable[[], bool]) -> FinishedMember:
        return self.finished or self._validate(network, stop_requested)
