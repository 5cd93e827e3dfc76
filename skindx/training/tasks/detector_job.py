"""The detector's training as a job of the run: ultralytics' model, and its moving average."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from skindx.core.errors import UserError
from skindx.core.machine import go_offline, require_extra
from skindx.core.settings_base import read_yaml
from skindx.core.startup import light_imports
from skindx.core.state_checks import check_like
from skindx.data.box import Box
from skindx.data.loader.batches import epoch_plan, steps_of
from skindx.data.loader.load import work_ahead
from skindx.data.manifest import Record
from skindx.data.origin import origin_of
from skindx.metrics import DetectionScore, mean_average_precision
from skindx.models.bundle.bundle import DetectorParts
from skindx.models.detector import (
    Detector,
    DetectorRecall,
    DetectorSpec,
    SizedTruth,
    build_detection_model,
    parse_config,
    recall_by_size,
)
from skindx.training.callbacks import CallbackList, detector_callbacks
from skindx.training.checkpoint.fingerprints import detector_fingerprint
from skindx.training.checkpoint.finished import CHECKPOINT, is_trained, save_parts
from skindx.training.config.ensemble import DetectorSettings
from skindx.training.config.optimizers import rate_at
from skindx.training.config.run import TrainSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.state import Batch, EpochSpeed, Piece, Row, Training, setup
from skindx.training.tasks.detector_data import (
    BoxedBatch,
    BoxedSet,
    boxed_batches,
    looked_at,
    open_boxed,
)

# Detection of lesions as a task: boxed images, the summed loss, mAP on validation.

LEAST_CONFIDENCE = 0.001
"""mAP is an area under precision against recall: it needs the doubtful boxes as well."""

_BATCH = 16

Boxes = tuple[Box, ...]


def score_detector(detector: Detector, boxed: BoxedSet, mesh: Mesh) -> DetectionScore | None:
    """Return the mAP over the images of all ranks, on every rank; None when none has a box.

    `boxed` holds this rank's images. An image without boxes counts: what is found there is a false
    alarm.
    """
    pairs = list(zip(_truth(boxed), _find(detector, boxed, LEAST_CONFIDENCE), strict=True))
    sent = [(_numbers(truth), _numbers(result)) for truth, result in pairs]
    everyone = [(_boxes(a), _boxes(b)) for part in mesh.gather(sent) for a, b in part]
    return mean_average_precision(
        [truth for truth, _ in everyone], [result for _, result in everyone]
    )


def measure_recall(detector: Detector, boxed: BoxedSet, mesh: Mesh) -> DetectorRecall | None:
    """Return how many lesions of each size are found over the images of all ranks, on every rank.

    That is at the confidence with which boxes are shown. None when no image has a lesion.
    """
    confidence, size = detector.spec.confidence, detector.spec.size
    sent = [
        (_numbers(truth), _numbers(result), size / max(record.width, record.height))
        for record, truth, result in zip(
            boxed.records, _truth(boxed), _find(detector, boxed, confidence), strict=True
        )
    ]
    everyone = (one for part in mesh.gather(sent) for one in part)
    return recall_by_size(
        (SizedTruth(_boxes(a), _boxes(b), px) for a, b, px in everyone), confidence
    )


def _truth(boxed: BoxedSet) -> list[Boxes]:
    return [record.boxes or () for record in boxed.records]


# Only corners, classes and scores travel between the ranks.


def _numbers(boxes: Sequence[Box]) -> list[tuple[Any, ...]]:
    return [(box.x1, box.y1, box.x2, box.y2, box.label, "", box.score) for box in boxes]


def _boxes(rows: Sequence[tuple[Any, ...]]) -> Boxes:
    return tuple(Box(*row) for row in rows)


def _find(detector: Detector, boxed: BoxedSet, confidence: float) -> Sequence[Boxes]:
    result: list[Boxes] = []
    ahead = 2 * _BATCH
    images = work_ahead(
        boxed.source.image, range(len(boxed)), threads=boxed.reading.threads, ahead=ahead
    )
    with closing(images):
        while batch := list(islice(images, _BATCH)):
            result += detector.detect(batch, confidence)
    return result


# ultralytics' v8 loss as a sum, so that N ranks with uneven shares equal one process.
#
# The loss (box, class and distribution focal terms) is a sum over anchors, divided by the sum of
# the target scores of the batch (task-aligned learning: Feng et al. 2021, arXiv 2108.07755). That
# divisor couples the images of a batch: a mean of the ranks' own losses would weigh an image by
# what else its rank drew. So each rank returns its sum and its scores, and the divisor is that of
# all ranks. What still differs between N ranks and one is batch norm, whose statistics each rank
# takes from its own share unless they are synchronised.

BOX_GAIN, CLASS_GAIN, FOCAL_GAIN = 7.5, 1.0, 1.5
"""ultralytics' weights of the three terms, but twice its class term: lesions fill the image."""

# B = images, K = boxes of all images


class DetectionLoss:
    """The v8 loss of one rank's share, not yet divided by the target scores."""

    def __init__(self, net: nn.Module) -> None:
        """Take ultralytics' DetectionModel, already on its device."""
        from ultralytics.utils.loss import v8DetectionLoss

        net.args = SimpleNamespace(box=BOX_GAIN, cls=CLASS_GAIN, dfl=FOCAL_GAIN)  # type: ignore[assignment]
        self._loss = v8DetectionLoss(net)
        assigner = self._loss.assigner

        def assign(*arguments: Any, **named: Any) -> Any:
            result = assigner(*arguments, **named)
            self._scores = result[2].sum()
            return result

        self._loss.assigner = assign

    def __call__(
        self, outputs: dict[str, Any], boxes_K4: Tensor, labels_K: Tensor, image_K: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return (loss sum, target scores), both scalars.

        `outputs` are those of the network in training mode. `boxes_K4` are centre x, y, width and
        height as shares of the square, `image_K` the place in the batch of each box's image.
        """
        exact = {
            "boxes": outputs["boxes"].float(),
            "scores": outputs["scores"].float(),
            "feats": outputs["feats"],
        }
        batch = {"batch_idx": image_K, "cls": labels_K, "bboxes": boxes_K4}
        terms = self._loss(exact, batch)[0].sum() / len(exact["boxes"])  # it multiplied by B
        return terms * self._scores.clamp(min=1), self._scores


def all_scores(scores: Tensor, mesh: Mesh) -> float:
    """Return the divisor of the loss: the target scores of all ranks, at least 1."""
    total = scores.detach().float().clone()
    if mesh.data.size > 1:
        dist.all_reduce(total)
    return max(1.0, float(total))


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
        return self.settings.seed

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    @property
    def images(self) -> int:
        return len(self.training)

    @property
    def batch(self) -> int:
        return self.settings.batch

    @property
    def spec(self) -> DetectorSpec:
        """How the bundle runs it."""
        return DetectorSpec(size=self.settings.size, labels=self.training.labels)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        plan = epoch_plan(
            *(self.images, self.batch, self.seed, epoch, self.mesh.data.size), sharded=False
        )[first:]
        local_shares = [shares[self.mesh.data.rank] for shares in plan]
        loaded = boxed_batches(self.training, local_shares, self.settings, epoch)
        for shares, boxed in zip(plan, loaded, strict=True):
            count = sum(len(share) for share in shares)
            yield Batch(self._pieces(boxed), local_count=len(boxed.images_BSS3), count=count)

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
        per_epoch, settings = steps_of(self.images, self.batch), self.settings
        warmup = int(per_epoch * settings.warmup_epochs)
        return rate_at(step, per_epoch * settings.epochs, warmup, settings.learning_rate)

    def validate(
        self, network: nn.Module, speed: EpochSpeed, stop_requested: Callable[[], bool]
    ) -> dict[str, Any]:
        """Return mAP on the validation images, and the seconds since the training began."""
        score = score_detector(Detector(network.eval(), self.spec), self.validation, self.mesh)
        score = score or DetectionScore(0.0, 0.0, 0, 0)  # no validation image has a box
        return {
            "map50": round(score.map50, 4),
            "map50_95": round(score.map50_95, 4),
            "seconds": self.mesh.gather(speed.seconds)[0],
        }

    def enough(self, history: Sequence[Row]) -> str:
        """Return why to stop early: the main rank's figures, which the history of all ranks holds.

        Validation reached its goal, or the time is used up.
        """
        last: Row = history[-1] if history else {}
        settings = self.settings
        if (map50 := last.get("map50", 0.0)) >= settings.stop_map50 and history:
            return f"mAP50 of {map50:.3f} reached detector.stop_map50={settings.stop_map50:g}"
        if (seconds := last.get("seconds", 0.0)) >= settings.limit_s:
            return f"{seconds:.0f} s passed detector.limit_s={settings.limit_s:g}"
        return ""

    def line(self, row: Row) -> str:
        return (
            f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val mAP50 {row['map50']:.3f}  "
            f"mAP50-95 {row['map50_95']:.3f}"
        )

    def result(self, network: nn.Module, stop_requested: Callable[[], bool]) -> DetectorParts:
        net: Any = network
        config = {**net.yaml, "nc": len(self.training.labels)}
        result = measure_recall(Detector(network.eval(), self.spec), self.validation, self.mesh)
        return DetectorParts(self.spec, config, net.state_dict(), result)


_DECAY, _TAU = 0.9999, 2000

# B = batch, S = side


class DetectionNet(nn.Module):
    """uint8 images B x S x S x 3 in, the outputs of ultralytics' model out."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images_BSS3: Tensor) -> Any:
        """Return boxes, scores and feature maps in training mode."""
        return self.net(images_BSS3.permute(0, 3, 1, 2).float() / 255)


def build_network(model: str, labels: int) -> nn.Module:
    """Create ultralytics' DetectionModel with random weights.

    Raises UserError for a name ultralytics does not know, a model that is no plain detector, and
    without ultralytics. The first call is one of all ranks: ultralytics' import waits for them.
    """
    go_offline()
    otherwise = " (AGPL-3.0), or set detector=null"
    require_extra("detect", "ultralytics", purpose="a detector", otherwise=otherwise)
    with light_imports():
        import ultralytics  # noqa: F401 (its import waits for all ranks)

    raw = _read_model(model)
    last: Any = (raw.get("head") or [None])[-1]
    if not isinstance(last, list) or last[2:3] != ["Detect"] or raw.get("end2end"):
        raise UserError(
            f"detector.model={model!r} has no head for the v8 loss; set a model such as "
            "yolov8n.yaml, yolo11n.yaml or yolo12n.yaml."
        )
    config = parse_config(raw, f"detector.model={model!r}")
    return build_detection_model(config, labels, f"detector.model={model!r}")


def _read_model(model: str) -> dict[str, Any]:
    """Return the dictionary of a YAML file, the user's own or one that ultralytics brings along.

    Never asks ultralytics for any other name: it fetches what looks like an address.
    """
    from ultralytics.nn.tasks import guess_model_scale, yaml_model_load

    path = Path(model)
    if path.suffix in (".yaml", ".yml") and "://" not in model:
        # As ultralytics does: yolov8n.yaml is the size n of yolov8.yaml.
        general = Path(re.sub(r"(\d+)([nslmx])(.+)?$", r"\1\3", model))
        for file in (path, general):
            if file.is_file():
                return {**read_yaml(file), "scale": guess_model_scale(path)}
        if re.fullmatch(r"[\w-]+\.ya?ml", model):
            try:
                return dict(yaml_model_load(model))
            except FileNotFoundError:
                pass
    raise UserError(
        f"detector.model={model!r} is neither a detector of ultralytics nor a YAML file; set "
        "detector.model to a name such as yolov8n.yaml or yolo11s.yaml."
    )


class MovingAverage:
    """The exponential moving average of weights and statistics, which is evaluated and kept.

    As in ultralytics the decay climbs to 0.9999 with a time constant of 2,000 steps, so that the
    average of a short training does not hang on to its random start.
    """

    def __init__(self, net: nn.Module) -> None:
        """Start from `net`, before an engine puts its hooks on it."""
        self._average = AveragedModel(net, avg_fn=_mix, use_buffers=True)

    @property
    def module(self) -> nn.Module:
        return self._average.module

    def update(self, module: nn.Module, steps: int) -> None:
        """Take in the weights of a `DetectionNet` after a step."""
        assert isinstance(module, DetectionNet)
        self._average.update_parameters(module.net)

    def state_dict(self) -> dict[str, Any]:
        return self._average.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_like(state, self._average.state_dict(), "average")
        self._average.load_state_dict(state)


def _mix(average: Tensor, current: Tensor, steps: Tensor | int) -> Tensor:
    if not average.is_floating_point():
        return current
    decay = _DECAY * (1 - math.exp(-float(steps) / _TAU))
    return torch.lerp(current, average, decay)


@dataclass(frozen=True)
class DetectorJob:
    """The detector of a run that trains one itself."""

    run: Path
    dataset: Path
    settings: TrainSettings
    records: Sequence[Record]
    """Records of the whole dataset."""
    label: str = "the detector"
    key: str = CHECKPOINT
    """The name of its folder among the run's checkpoints."""

    @cached_property
    def fingerprint(self) -> str:
        return detector_fingerprint(self.settings, self.dataset)

    def is_finished(self) -> bool:
        """True when it is in the run. Raises UserError when it was trained otherwise."""
        return is_trained(self.run, self.settings, self.dataset)

    def callbacks(self, *, shown: bool) -> CallbackList:
        images = len(looked_at(self.records, "train"))
        return detector_callbacks(self.run, self.settings, images, shown=shown)

    def setup(self, mesh: Mesh, say: Callable[[str], None]) -> Training[DetectorParts]:
        detector = self.settings.detector
        assert detector is not None
        training, validation = open_boxed(
            self.dataset, self.records, detector.size, self.settings.loader, mesh
        )
        torch.manual_seed(detector.seed)  # every rank starts from the same weights
        net = build_network(detector.model, len(training.labels)).to(mesh.device)
        task = DetectorTask(detector, mesh, training, validation, DetectionLoss(net))
        average = MovingAverage(net)
        optimizer = torch.optim.AdamW(
            _groups(net, detector.weight_decay), lr=detector.learning_rate
        )
        return setup(
            task,
            DetectionNet(net),
            optimizer,
            average=average,
            settings=self.settings,
            mesh=mesh,
            say=say,
        )

    def save(self, result: DetectorParts, history: list[Row]) -> None:
        records = [*looked_at(self.records, "train"), *looked_at(self.records, "val")]
        images = origin_of(self.dataset, records)
        parts = replace(result, images=images)
        save_parts(self.run, self.dataset, parts, history, self.fingerprint)


def _groups(net: nn.Module, decay: float) -> list[dict[str, object]]:
    """Return the parameters that are decayed, and biases and norms, which never are."""
    weights = [weight for weight in net.parameters() if weight.requires_grad and weight.ndim > 1]
    undecayed = [weight for weight in net.parameters() if weight.requires_grad and weight.ndim <= 1]
    return [{"params": weights, "weight_decay": decay}, {"params": undecayed, "weight_decay": 0.0}]
