"""Detection of lesions as a task: boxed images, the summed loss, mAP on validation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from skindx.metrics import DetectionScore
from skindx.models.bundle.bundle import DetectorParts
from skindx.models.detector.detector import Detector, DetectorSpec
from skindx.training.config.detector import DetectorSettings
from skindx.training.feeding.batches import epoch_plan, steps_of
from skindx.training.parallel.mesh import Mesh
from skindx.training.recipes.schedule import rate_at
from skindx.training.task import Batch, EpochSpeed, Piece, Row
from skindx.training.tasks.detector.images import BoxedBatch, BoxedSet, boxed_batches
from skindx.training.tasks.detector.loss import DetectionLoss, all_scores
from skindx.training.tasks.detector.scoring import measure_recall, score_detector


@dataclass(frozen=True)
class DetectorTask:
    """The run's detector, trained on all ranks; its moving average is evaluated and kept."""

    settings: DetectorSettings
    mesh: Mesh
    training: BoxedSet
    validation: BoxedSet
    """This rank's share."""
    criterion: DetectionLoss
    name: str = "detector"

    @property
    def seed(self) -> int:
        """The detector's."""
        return self.settings.seed

    @property
    def epochs(self) -> int:
        """How many there will be at most."""
        return self.settings.epochs

    @property
    def images(self) -> int:
        """Training images of all ranks."""
        return len(self.training)

    @property
    def batch(self) -> int:
        """The detector's."""
        return self.settings.batch

    @property
    def spec(self) -> DetectorSpec:
        """How the bundle runs it."""
        return DetectorSpec(size=self.settings.size, labels=self.training.labels)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this rank's batches of an epoch, from step `first` on."""
        plan = epoch_plan(
            *(self.images, self.batch, self.seed, epoch, self.mesh.data.size), sharded=False
        )[first:]
        own = [shares[self.mesh.data.rank] for shares in plan]
        loaded = boxed_batches(self.training, own, self.settings, epoch)
        for shares, boxed in zip(plan, loaded, strict=True):
            count = sum(len(share) for share in shares)
            yield Batch(self._pieces(boxed), own=len(boxed.images_BSS3), count=count)

    def _pieces(self, boxed: BoxedBatch) -> Callable[[], Sequence[Piece]]:
        """Return what brings a batch to the device, in one piece."""

        def pieces() -> Sequence[Piece]:
            device = self.mesh.device
            targets = (boxed.boxes_K4, boxed.labels_K, boxed.image_K)
            return [(boxed.images_BSS3.to(device), tuple(target.to(device) for target in targets))]

        return pieces

    def loss(self, outputs: Any, targets: Any, count: int) -> Tensor:
        """Return the batch's loss times its images, as if it were a sum over images.

        The engine takes the mean of such a sum.
        """
        loss_sum, scores = self.criterion(outputs, *targets)
        return loss_sum * (count / all_scores(scores, self.mesh))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        per_epoch, own = steps_of(self.images, self.batch), self.settings
        warmup = int(per_epoch * own.warmup_epochs)
        return rate_at(step, per_epoch * own.epochs, warmup, own.learning_rate)

    def validate(
        self, network: nn.Module, speed: EpochSpeed, asked: Callable[[], bool]
    ) -> dict[str, Any]:
        """Return mAP on the validation images, and the seconds since the training began."""
        score = score_detector(Detector(network.eval(), self.spec), self.validation, self.mesh)
        score = score or DetectionScore(0.0, 0.0, 0, 0)  # no validation image has a box
        return {
            "map50": round(score.map50, 4),
            "map50_95": round(score.map50_95, 4),
            "seconds": self.mesh.gather(speed.seconds)[0],
        }

    def after_epoch(self, epoch: int) -> None:
        """Nothing is kept of an epoch."""

    def enough(self, history: Sequence[Row]) -> str:
        """Return why to stop early: the main rank's figures, which the history of all ranks holds.

        Validation reached its goal, or the time is used up.
        """
        last: Row = history[-1] if history else {}
        own = self.settings
        if (map50 := last.get("map50", 0.0)) >= own.stop_map50 and history:
            return f"mAP50 of {map50:.3f} reached detector.stop_map50={own.stop_map50:g}"
        if (seconds := last.get("seconds", 0.0)) >= own.limit_s:
            return f"{seconds:.0f} s passed detector.limit_s={own.limit_s:g}"
        return ""

    def line(self, row: Row) -> str:
        """Return an epoch's figures as a line."""
        return (
            f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val mAP50 {row['map50']:.3f}  "
            f"mAP50-95 {row['map50_95']:.3f}"
        )

    def result(self, network: nn.Module, asked: Callable[[], bool]) -> DetectorParts:
        """Return what the bundle holds of the detector."""
        net: Any = network
        config = {**net.yaml, "nc": len(self.training.labels)}
        found = measure_recall(Detector(network.eval(), self.spec), self.validation, self.mesh)
        return DetectorParts(self.spec, config, net.state_dict(), found)
