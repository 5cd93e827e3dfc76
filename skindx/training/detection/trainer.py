"""Train the lesion detector on all ranks, under the same engine as the members."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from skindx.data.manifest import Record
from skindx.errors import UserError
from skindx.metrics import DetectionScore
from skindx.models.bundle import DetectorParts
from skindx.models.detector import Detector, DetectorSpec
from skindx.training.batches import epoch_plan, step_seed
from skindx.training.detection.loss import DetectionLoss, all_scores
from skindx.training.detection.network import (
    DetectionNet,
    average_statistics,
    build_network,
    moving_average,
)
from skindx.training.detection.pictures import BoxedBatch, BoxedSet, boxed_batches, open_boxed
from skindx.training.detection.scoring import score_detector
from skindx.training.detection.settings import DetectorSettings
from skindx.training.engine import Cluster, Engine
from skindx.training.schedule import rate_at
from skindx.training.settings import TrainSettings
from skindx.training.trainer import Position, Progress


@dataclass(frozen=True)
class DetectorTraining:
    """A detector in training.

    Stateful: `engine`, `average` and `position`. All else is made from the settings alone, as in a
    member's training.
    """

    settings: DetectorSettings
    cluster: Cluster
    engine: Engine
    average: AveragedModel
    loss: DetectionLoss
    pictures: BoxedSet
    validation: BoxedSet
    """This rank's share."""
    spec: DetectorSpec
    position: Position = field(default_factory=Position)

    @property
    def detector(self) -> Detector:
        """The moving average, as it would be served."""
        return Detector(self.average.module.eval(), self.spec)


AfterStep = Callable[[DetectorTraining], None]
"""Called after each step, and again after each epoch (then `position.step` is 0), on every rank."""


def train_detector(
    settings: TrainSettings,
    dataset: Path,
    records: Sequence[Record],
    cluster: Cluster,
    progress: Progress,
) -> tuple[DetectorParts, list[dict[str, float]]]:
    """Train a detector on the manifest's boxes; every rank calls this."""
    training = begin(settings, dataset, records, cluster)
    go_on(training, progress)
    training.engine.close()
    net: Any = training.average.module
    config = {**net.yaml, "nc": len(training.spec.labels)}
    return DetectorParts(training.spec, config, net.state_dict()), training.position.history


def begin(
    settings: TrainSettings, dataset: Path, records: Sequence[Record], cluster: Cluster
) -> DetectorTraining:
    """Return the detector before its first step, the same on every rank."""
    assert settings.detector is not None
    own = settings.detector
    pictures, validation = open_boxed(dataset, records, own.size, settings.loader, cluster)
    torch.manual_seed(own.seed)  # every rank starts from the same weights
    net = build_network(own.model, len(pictures.labels)).to(cluster.device)
    loss, average = DetectionLoss(net), moving_average(net)
    optimizer = torch.optim.AdamW(_groups(net, own.weight_decay), lr=own.learning_rate)
    engine = Engine(DetectionNet(net), optimizer, cluster, own.batch)
    spec = DetectorSpec(size=own.size, labels=pictures.labels)
    return DetectorTraining(own, cluster, engine, average, loss, pictures, validation, spec)


def _groups(net: nn.Module, decay: float) -> list[dict[str, object]]:
    """Return the parameters that are decayed, and biases and norms, which never are."""
    weights = [each for each in net.parameters() if each.requires_grad and each.ndim > 1]
    others = [each for each in net.parameters() if each.requires_grad and each.ndim <= 1]
    return [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def go_on(
    training: DetectorTraining,
    progress: Progress,
    after_step: AfterStep = lambda training: None,
) -> None:
    """Train from the training's position to its end."""
    position, settings = training.position, training.settings
    before = float(position.history[-1]["seconds"]) if position.history else 0.0
    started = time.monotonic()
    while position.epoch < settings.epochs:
        for loss, count in _steps(training):
            position.step += 1
            position.loss_sum += loss
            progress.step(loss / max(1, count))
            after_step(training)
        map50 = _end_epoch(training, before + time.monotonic() - started)
        progress.line(_line(position.history[-1]))
        after_step(training)
        if map50 >= settings.stop_map50 or position.history[-1]["seconds"] >= settings.limit_s:
            return


def _steps(training: DetectorTraining) -> Iterator[tuple[float, int]]:
    """Take the steps that are left of an epoch; yield this rank's summed loss and its pictures."""
    settings, cluster, position = training.settings, training.cluster, training.position
    plan = epoch_plan(
        *(len(training.pictures), settings.batch, settings.seed, position.epoch, cluster.world),
        sharded=False,
    )
    first, epoch = position.step, position.epoch
    shares = [shares[cluster.rank] for shares in plan[first:]]
    steps, warmup = len(plan) * settings.epochs, int(len(plan) * settings.warmup_epochs)
    training.engine.train()
    loaded = boxed_batches(training.pictures, shares, settings, epoch)
    for step, batch in enumerate(loaded, start=first):
        torch.manual_seed(step_seed(settings.seed, epoch, step, cluster.rank))
        rate = rate_at(epoch * len(plan) + step, steps, warmup, settings.learning_rate)
        count = sum(len(share) for share in plan[step])
        yield _step(training, batch, count, rate), len(batch.pictures_BSS3)


def _step(training: DetectorTraining, batch: BoxedBatch, count: int, rate: float) -> float:
    """Take one step on this rank's part of `count` pictures; return its part of their loss."""
    engine, device = training.engine, training.cluster.device
    found: Any = engine(batch.pictures_BSS3.to(device))
    loss_sum, scores = training.loss(
        found, batch.boxes_K4.to(device), batch.labels_K.to(device), batch.picture_K.to(device)
    )
    # The batch's loss times its pictures, as if it were a sum over pictures: `backward` takes the
    # mean of such a sum.
    scaled = loss_sum * (count / all_scores(scores, training.cluster))
    engine.backward(scaled, count)
    engine.step(rate)
    module = engine.module
    assert isinstance(module, DetectionNet)
    training.average.update_parameters(module.net)
    return float(scaled.item())


def _end_epoch(training: DetectorTraining, seconds: float) -> float:
    """Validate, write the epoch's history row, move to the next epoch; return the mAP50."""
    position, cluster = training.position, training.cluster
    loss = float(sum(cluster.gather(position.loss_sum))) / len(training.pictures)
    if not np.isfinite(loss):
        raise UserError(
            f"the detector's loss became {loss} in epoch {position.epoch + 1}; "
            "lower detector.learning_rate."
        )
    training.engine.average_buffers()
    average_statistics(training.average.module, cluster.world)
    score = score_detector(training.detector, training.validation, cluster)
    score = score or DetectionScore(0.0, 0.0, 0, 0)  # no validation picture has a box
    position.history.append(
        {
            "epoch": position.epoch + 1,
            "loss": round(loss, 5),
            "map50": round(score.map50, 4),
            "map50_95": round(score.map50_95, 4),
            "seconds": cluster.gather(round(seconds, 1))[0],  # all stop by the first rank's clock
        }
    )
    position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
    return score.map50


def _line(row: dict[str, float]) -> str:
    return (
        f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val mAP50 {row['map50']:.3f}  "
        f"mAP50-95 {row['map50_95']:.3f}"
    )
