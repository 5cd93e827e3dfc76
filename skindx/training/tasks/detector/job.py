"""The detector's training as a job of the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from skindx.data.manifest import Record
from skindx.models.bundle.bundle import DetectorParts
from skindx.training.callbacks.callback_list import CallbackList, detector_callbacks
from skindx.training.config.run import TrainSettings
from skindx.training.finished.detector import CHECKPOINT, is_trained, save_parts
from skindx.training.finished.fingerprint import detector_fingerprint
from skindx.training.parallel.mesh import Mesh
from skindx.training.state import Training, setup
from skindx.training.task import Row
from skindx.training.tasks.detector.images import looked_at, open_boxed
from skindx.training.tasks.detector.loss import DetectionLoss
from skindx.training.tasks.detector.network import DetectionNet, MovingAverage, build_network
from skindx.training.tasks.detector.task import DetectorTask


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
        """Hash of everything that decides its weights."""
        return detector_fingerprint(self.settings, self.dataset)

    def is_finished(self) -> bool:
        """True when it is in the run. Raises UserError when it was trained otherwise."""
        return is_trained(self.run, self.settings, self.dataset)

    def callbacks(self, *, shown: bool) -> CallbackList:
        """Return its bar."""
        images = len(looked_at(self.records, "train"))
        return detector_callbacks(self.run, self.settings, images, shown=shown)

    def setup(self, mesh: Mesh, say: Callable[[str], None]) -> Training[DetectorParts]:
        """Return its training before the first step; every rank calls this."""
        own = self.settings.detector
        assert own is not None
        training, validation = open_boxed(
            self.dataset, self.records, own.size, self.settings.loader, mesh
        )
        torch.manual_seed(own.seed)  # every rank starts from the same weights
        net = build_network(own.model, len(training.labels)).to(mesh.device)
        task = DetectorTask(own, mesh, training, validation, DetectionLoss(net))
        average = MovingAverage(net)
        optimizer = torch.optim.AdamW(_groups(net, own.weight_decay), lr=own.learning_rate)
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
        """Write RUN/detector."""
        save_parts(self.run, self.dataset, result, history, self.fingerprint)


def _groups(net: nn.Module, decay: float) -> list[dict[str, object]]:
    """Return the parameters that are decayed, and biases and norms, which never are."""
    weights = [weight for weight in net.parameters() if weight.requires_grad and weight.ndim > 1]
    others = [weight for weight in net.parameters() if weight.requires_grad and weight.ndim <= 1]
    return [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
