"""A mesh of one process without a process group, for computations beside a training."""

from collections.abc import Callable
from typing import TypeVar

import torch

from skindx.training.config.engine import EngineSettings
from skindx.training.parallel.devices import resolve_accelerator
from skindx.training.parallel.mesh import Mesh, ProcessGroup

Value = TypeVar("Value")


class AloneMesh(Mesh):
    """This process and no other."""

    def __init__(self, settings: EngineSettings) -> None:
        """Take the accelerator of the settings."""
        accelerator = resolve_accelerator(settings.accelerator)
        super().__init__(ProcessGroup(0, 1), torch.device(accelerator), settings)

    def barrier(self) -> None:
        """Return at once: there is no other rank."""

    def broadcast_from_main(self, work: Callable[[], Value]) -> Value:
        """Return what `work` returns."""
        return work()
