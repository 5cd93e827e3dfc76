"""The detector's training as a job of the run: ultralytics' model, and its moving average."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from skindx.core.errors import UserError
from skindx.core.machine import go_offline, require_extra
from skindx.core.settings_base import read_yaml
from skindx.core.startup import light_imports
from skindx.core.state_checks import check_like
from skindx.data.manifest import Record
from skindx.models.bundle.bundle import DetectorParts
from skindx.models.detector import build_detection_model, parse_config
from skindx.training.callbacks import CallbackList, detector_callbacks
from skindx.training.checkpoint.fingerprints import detector_fingerprint
from skindx.training.checkpoint.finished import CHECKPOINT, is_trained, save_parts
from skindx.training.config.run import TrainSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.state import Row, Training, setup
from skindx.training.tasks.detector_data import looked_at, open_boxed
from skindx.training.tasks.detector_task import DetectionLoss, DetectorTask

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
            f"detector.model={model!r} is not trained by the v8 loss; "
            "give a model such as yolov8n.yaml, yolo11n.yaml or yolo12n.yaml."
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
        f"detector.model={model!r} is no detector of ultralytics and no YAML file; "
        "give one such as yolov8n.yaml or yolo11s.yaml."
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
        """A network with the averaged weights."""
        return self._average.module

    def update(self, module: nn.Module, steps: int) -> None:
        """Take in the weights of a `DetectionNet` after a step."""
        assert isinstance(module, DetectionNet)
        self._average.update_parameters(module.net)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._average.state_dict()
        return state

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
    """Of the whole dataset."""
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
        save_parts(self.run, self.dataset, result, history, self.fingerprint)


def _groups(net: nn.Module, decay: float) -> list[dict[str, object]]:
    """Return the parameters that are decayed, and biases and norms, which never are."""
    weights = [weight for weight in net.parameters() if weight.requires_grad and weight.ndim > 1]
    undecayed = [weight for weight in net.parameters() if weight.requires_grad and weight.ndim <= 1]
    return [{"params": weights, "weight_decay": decay}, {"params": undecayed, "weight_decay": 0.0}]
