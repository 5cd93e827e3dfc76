"""A moving average of a member's weights and statistics, which is what is evaluated and kept."""

from typing import Any

import torch
from torch import nn

from skindx.core.state_checks import check_like
from skindx.training.config.recipe import Ema
from skindx.training.parallel.sharding.whole import own_state, whole_shapes, whole_state


class WeightAverage:
    """timm's exponential moving average over a module, with its batch-norm statistics.

    Every rank keeps the same average of the weights; the statistics differ until they are
    averaged over the ranks. All in fp32 on the module's device.
    """

    def __init__(self, module: nn.Module, settings: Ema) -> None:
        """Start from `module`, before an engine puts its hooks on it."""
        from timm.utils import ModelEmaV3

        self._average = ModelEmaV3(
            module, decay=settings.decay, use_warmup=settings.warmup, dtype=torch.float32
        )

    @property
    def module(self) -> nn.Module:
        """A module with the averaged weights, in evaluation mode."""
        module: nn.Module = self._average.module
        return module

    def update(self, module: nn.Module, steps: int) -> None:
        """Take in a module's weights after `steps` steps in all."""
        self._average.update(module, step=steps)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold; every rank calls this."""
        return whole_state(self.module)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        shapes = whole_shapes(self.module)
        like = {
            name: torch.empty(shapes[name], device="meta") if name in shapes else value
            for name, value in self.module.state_dict().items()
        }
        check_like(state, like, "average")
        self.module.load_state_dict(own_state(state, self.module))
