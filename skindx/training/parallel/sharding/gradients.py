"""The gradients of split weights: no rank sees all of them, and all must decide alike."""

from collections.abc import Sequence

import torch
from torch import nn

from skindx.training.parallel.sharding.communicator import Communicator


class SplitGradients:
    """Gradients that stay where they are, each rank's its own."""

    def __init__(self, weights: Sequence[nn.Parameter], wires: Communicator) -> None:
        self._weights, self._wires = weights, wires

    def square(self) -> float:
        """Return the squared norm over all ranks, the same on each; NaN where one is not finite."""
        device = self._weights[0].device
        own = [weight.grad for weight in self._weights if weight.grad is not None]
        total = torch.zeros(1, dtype=torch.float64, device=device)
        if own:
            total += torch.stack(torch._foreach_norm(own)).double().square().sum()
        return float(self._wires.sum(total))

    def scale(self, factor: float) -> None:
        """Multiply them."""
        torch._foreach_mul_(
            [weight.grad for weight in self._weights if weight.grad is not None], factor
        )
