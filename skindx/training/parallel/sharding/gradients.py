"""The norm of a gradient of which no rank sees all parts, and on which all must decide alike."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from skindx.training.parallel.sharding.communicator import Communicator


class SplitGradients:
    """The gradients of split weights, each rank's its own, beside those that all hold alike."""

    def __init__(
        self,
        weights: Mapping[Communicator, Sequence[nn.Parameter]],
        others: Sequence[nn.Parameter],
    ) -> None:
        """Know the weights that are split, by what their ranks talk through, and all `others`."""
        self._weights, self._others = weights, others

    def square(self, *, known_bad: bool = False) -> float:
        """Return the squared norm of the split ones over all ranks, the same on each.

        NaN where one is not finite, or where a rank has `known_bad` ones.
        """
        total = 0.0
        for wires, weights in self._weights.items():
            own = _square(weights)
            total += float(wires.sum(own + math.nan if known_bad else own))
        return total

    def norm(self, *, known_bad: bool) -> float | None:
        """Return the norm of all gradients; None, on all ranks, where one is not finite.

        It is the same to the bit on all ranks, and so is what is clipped by it.
        """
        square = self.square(known_bad=known_bad)
        return math.sqrt(square + float(_square(self._others))) if math.isfinite(square) else None

    def scale(self, factor: float) -> None:
        """Multiply the split ones."""
        for weights in self._weights.values():
            torch._foreach_mul_(_gradients(weights), factor)


def _gradients(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _square(weights: Sequence[nn.Parameter]) -> Tensor:
    """Return the squared norm of what these weights have of gradients, as a tensor of one."""
    found = _gradients(weights)
    if not found:
        device = weights[0].device if weights else None
        return torch.zeros(1, dtype=torch.float64, device=device)
    return torch.stack(torch._foreach_norm(found)).double().square().sum().view(1)
