"""The optimizers that `skindx bench second-order` compares, and how each is tuned."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from skindx.training.config.recipe import Recipe
from skindx.training.tasks.classifier_job import MakeOptimizer
from skindx.training.tasks.optimizer import build_optimizer

RATE_FACTOR = 10**0.5
"""Between two learning rates that are tried."""


@dataclass(frozen=True)
class Arm:
    """An optimizer: what it changes in the recipe, and the learning rate that its trials lie about.

    `rate` is what its authors or its library use; trials are a factor of 10^(1/2) apart.
    """

    rate: float
    recipe: dict[str, Any]
    build: MakeOptimizer = build_optimizer

    def rates(self, trials: int) -> list[float]:
        """Return the learning rates that are tried, the usual one in their middle."""
        low = -(trials // 2)
        return [float(f"{self.rate * RATE_FACTOR**step:.3g}") for step in range(low, low + trials)]


def _muon(net: nn.Module, recipe: Recipe, fresh: Iterable[str]) -> torch.optim.Optimizer:
    """Return timm's Muon over the groups of AdamW: torch's own refuses convolutions."""
    from timm.optim import Muon

    groups = [
        {key: group[key] for key in ("params", "weight_decay", "lr_scale")}
        for group in build_optimizer(net, recipe, fresh).param_groups
    ]
    made: torch.optim.Optimizer = Muon(groups, lr=recipe.learning_rate)
    return made


ARMS: dict[str, Arm] = {
    "adamw": Arm(1e-3, {"optimizer": "adamw", "weight_decay": 0.05}),
    "sgd": Arm(0.05, {"optimizer": "sgd", "weight_decay": 5e-4}),
    "kfac": Arm(
        0.05, {"optimizer": "sgd", "weight_decay": 5e-4, "preconditioner": {"kind": "kfac"}}
    ),
    "muon": Arm(1e-3, {"optimizer": "adamw", "weight_decay": 0.05}, _muon),
}
BASELINE = "adamw"
