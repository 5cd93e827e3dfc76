"""Training of one process on whole batches, which split layers have to equal."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from skindx.training.config.recipe import Ema
from skindx.training.tasks.optimizer import WeightAverage


@dataclass(frozen=True)
class Reference:
    """Gradients of the first step, and the network and its average after all steps."""

    gradients: dict[str, Tensor]
    net: nn.Module
    average: nn.Module

    @property
    def weights(self) -> dict[str, Tensor]:
        """Weights and buffers by name."""
        return self.net.state_dict()


def train_reference(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Callable[[int], tuple[Tensor, Tensor]],
    steps: int,
) -> Reference:
    """Train on `data` of each step; gradients are clipped to a norm of 0.5."""
    average, first = WeightAverage(net, Ema(decay=0.5, warmup=False)), dict[str, Tensor]()
    for number in range(steps):
        inputs, labels = data(number)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        trained = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
        first = first or {name: weight.grad.clone() for name, weight in trained.items()}
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        average.update(net, number + 1)
    return Reference(first, net, average.module)
