"""Train the lesion detector on all ranks, under the same engine as the members."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skindx.data.manifest import Record
from skindx.metrics import DetectionScore
from skindx.models.bundle.bundle import DetectorParts
from skindx.models.detector.detector import Detector, DetectorSpec
from skindx.training.callbacks.bar import TrainingBar
from skindx.training.checkpoint.resume import Resuming
from skindx.training.checkpoint.stateful import Buffers
from skindx.training.config.detector import DetectorSettings
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.feeding.batches import epoch_plan, step_seed, steps_of
from skindx.training.parallel.mesh import Cluster
from skindx.training.position import Position, count_step
from skindx.training.recipes.schedule import rate_at
from skindx.training.step_guard import Watch
from skindx.training.tasks.detector.images import BoxedBatch, BoxedSet, boxed_batches, open_boxed
from skindx.training.tasks.detector.loss import DetectionLoss, all_scores
from skindx.training.tasks.detector.network import DetectionNet, MovingAverage, build_network
from skindx.training.tasks.detector.scoring import score_detector


@dataclass(frozen=True)
class DetectorTraining:
    """A detector in training.

    Stateful, so a checkpoint holds it: `engine`, `average`, `position`, and the batch-norm
    `statistics` of both networks. All else is made from the settings alone, as in a member's
    training.
    """

    settings: DetectorSettings
    cluster: Cluster
    engine: Engine
    average: MovingAverage
    loss: DetectionLoss
    pictures: BoxedSet
    validation: BoxedSet
    """This rank's share."""
    spec: DetectorSpec
    statistics: Buffers
    watch: Watch
    position: Position = field(default_factory=Position)
    name: str = "detector"

    @property
    def epochs(self) -> int:
        """How many there will be at most."""
        return self.settings.epochs

    @property
    def detector(self) -> Detector:
        """The moving average, as it would be served."""
        return Detector(self.average.module.eval(), self.spec)


def train_detector(
    settings: TrainSettings,
    dataset: Path,
    records: Sequence[Record],
    cluster: Cluster,
    bar: TrainingBar,
    *,
    saving: Resuming | None = None,
) -> tuple[DetectorParts, list[dict[str, Any]]]:
    """Train a detector on the manifest's boxes; every rank calls this.

    With `saving` it goes on from its last checkpoint, and StoppedError is raised when it was asked
    to stop.
    """
    training = begin(settings, dataset, records, cluster, bar.line)
    after_step = saving.attach(training, bar.line) if saving else lambda training: None
    go_on(training, bar, after_step)
    training.engine.close()
    net: Any = training.average.module
    config = {**net.yaml, "nc": len(training.spec.labels)}
    return DetectorParts(training.spec, config, net.state_dict()), training.position.history


def begin(
    settings: TrainSettings,
    dataset: Path,
    records: Sequence[Record],
    cluster: Cluster,
    say: Callable[[str], None],
) -> DetectorTraining:
    """Return the detector before its first step, the same on every rank."""
    assert settings.detector is not None
    own = settings.detector
    pictures, validation = open_boxed(dataset, records, own.size, settings.loader, cluster)
    torch.manual_seed(own.seed)  # every rank starts from the same weights
    net = build_network(own.model, len(pictures.labels)).to(cluster.device)
    loss, average = DetectionLoss(net), MovingAverage(net)
    optimizer = torch.optim.AdamW(_groups(net, own.weight_decay), lr=own.learning_rate)
    engine = Engine(
        DetectionNet(net),
        optimizer,
        cluster,
        own.batch,
        exchange=settings.exchange,
        steps_per_epoch=steps_of(len(pictures), own.batch),
        say=say,
    )
    return DetectorTraining(
        own,
        cluster,
        engine,
        average,
        loss,
        pictures,
        validation,
        DetectorSpec(size=own.size, labels=pictures.labels),
        Buffers([engine.module, average.module], cluster.rank, cluster.world),
        Watch(cluster, settings.checkpoint.bad_steps),
    )


def _groups(net: nn.Module, decay: float) -> list[dict[str, object]]:
    """Return the parameters that are decayed, and biases and norms, which never are."""
    weights = [each for each in net.parameters() if each.requires_grad and each.ndim > 1]
    others = [each for each in net.parameters() if each.requires_grad and each.ndim <= 1]
    return [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def go_on(
    training: DetectorTraining,
    bar: TrainingBar,
    after_step: Callable[[DetectorTraining], None] = lambda training: None,
) -> None:
    """Train from the training's position to its end."""
    position, settings = training.position, training.settings
    per_epoch = steps_of(len(training.pictures), settings.batch)
    spent = float(position.history[-1]["seconds"]) if position.history else 0.0
    started = time.monotonic() - spent
    while position.epoch < settings.epochs and not _is_enough(training):
        for loss, own, count in _steps(training):
            position.step += 1
            count_step(training, loss, count, bar)
            done = position.epoch * per_epoch + position.step
            bar.step(math.nan if loss is None else loss / own, done)
            after_step(training)
        _end_epoch(training, time.monotonic() - started)
        bar.line(_line(position.history[-1]))
        after_step(training)


def _is_enough(training: DetectorTraining) -> bool:
    """True when validation or the clock says so: the first rank's, which the history holds."""
    settings, history = training.settings, training.position.history
    if not history:
        return False
    last = history[-1]
    return bool(last["map50"] >= settings.stop_map50 or last["seconds"] >= settings.limit_s)


def _steps(training: DetectorTraining) -> Iterator[tuple[float | None, int, int]]:
    """Take the steps that are left of an epoch.

    Yields this rank's summed loss, or None when the step was skipped; its pictures; all ranks'.
    """
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
        yield _step(training, batch, count, rate), len(batch.pictures_BSS3), count


def _step(training: DetectorTraining, batch: BoxedBatch, count: int, rate: float) -> float | None:
    """Take one step on this rank's part of `count` pictures; return its part of their loss.

    None, and nothing has changed on any rank, when the loss is not finite on one of them.
    """
    engine, device = training.engine, training.cluster.device
    training.statistics.remember()
    found: Any = engine(batch.pictures_BSS3.to(device))
    loss_sum, scores = training.loss(
        found, batch.boxes_K4.to(device), batch.labels_K.to(device), batch.picture_K.to(device)
    )
    # The batch's loss times its pictures, as if it were a sum over pictures: `backward` takes the
    # mean of such a sum.
    scaled = loss_sum * (count / all_scores(scores, training.cluster))
    value = training.watch.look(scaled)
    if value is None:
        engine.discard()
        training.statistics.go_back()
        return None
    engine.backward(scaled, count)
    if not engine.step(rate):
        training.statistics.go_back()
        return None
    module = engine.whole()
    assert isinstance(module, DetectionNet)
    training.average.update(module.net)
    return value


def _end_epoch(training: DetectorTraining, seconds: float) -> None:
    """Validate, write the epoch's history row and move to the next epoch."""
    position, cluster = training.position, training.cluster
    training.engine.average_buffers()
    training.engine.average_buffers(training.average.module)
    pictures = len(training.pictures) - position.skipped_pictures
    loss_sum = float(sum(cluster.gather(position.loss_sum)))
    score = score_detector(training.detector, training.validation, cluster)
    score = score or DetectionScore(0.0, 0.0, 0, 0)  # no validation picture has a box
    position.history.append(
        {
            "epoch": position.epoch + 1,
            "loss": round(loss_sum / pictures, 5) if pictures else math.nan,
            "map50": round(score.map50, 4),
            "map50_95": round(score.map50_95, 4),
            "seconds": cluster.gather(round(seconds, 1))[0],
            "skipped_steps": position.skipped,
        }
    )
    position.epoch, position.step, position.loss_sum = position.epoch + 1, 0, 0.0
    position.skipped, position.skipped_pictures = 0, 0


def _line(row: dict[str, Any]) -> str:
    return (
        f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val mAP50 {row['map50']:.3f}  "
        f"mAP50-95 {row['map50_95']:.3f}"
    )
