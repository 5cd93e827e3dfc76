"""The learning rate over a run, and the parameter groups it applies to."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from skindx.training.recipe import Recipe


def rate_at(step: int, steps: int, warmup: int, peak: float) -> float:
    """Return the rate of step 0..steps-1: linear warm-up, then a cosine to zero (SGDR, 2016)."""
    if step < warmup:
        return peak * ((step + 1) / warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def build_optimizer(net: nn.Module, recipe: Recipe, fresh: Iterable[str]) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over groups with and without decay, body and head.

    `fresh` names the parameters that start from random values; they take
    `head_learning_rate`. Biases and norms are never decayed.
    """
    fresh = set(fresh)
    head_scale = (recipe.head_learning_rate or recipe.learning_rate) / recipe.learning_rate
    groups: dict[tuple[bool, bool], dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        decayed, in_head = parameter.ndim > 1, name in fresh
        group = groups.setdefault(
            (decayed, in_head),
            {
                "params": [],
                "weight_decay": recipe.weight_decay if decayed else 0.0,
                "lr_scale": head_scale if in_head else 1.0,
            },
        )
        group["params"].append(parameter)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            list(groups.values()), lr=recipe.learning_rate, momentum=0.9, nesterov=True
        )
    return torch.optim.AdamW(list(groups.values()), lr=recipe.learning_rate)
