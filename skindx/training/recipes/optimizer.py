"""The optimizer of a recipe, and the groups of parameters that it treats alike."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from skindx.core.errors import UserError
from skindx.training.config.recipe import Recipe
from skindx.training.parallel.sharding.part import PARTS, Part, Placed, parts_of
from skindx.training.recipes.schedule import peak_rate

LAYERWISE = ("lars", "lamb")
"""Optimizers that adapt their rate to the norm of each layer."""


def build_optimizer(net: nn.Module, recipe: Recipe, fresh: Iterable[str]) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over groups with a decay and a share of the rate each.

    `fresh` names the parameters that start from random values beside given ones; they take
    `head_learning_rate`. Biases and norms are never decayed, and LARS and LAMB adapt the rate of
    the decayed ones alone (You et al. 2017 and 2019), by the norms of whole layers: what is split
    over ranks then stands in groups of its own, with its parts.
    """
    fresh = set(fresh)
    head_scale = (recipe.head_learning_rate or recipe.learning_rate) / recipe.learning_rate
    depths = layer_depths(net) if recipe.layer_decay < 1 else {}
    parts = _split_layers(net) if recipe.optimizer in LAYERWISE else {}
    groups: dict[tuple[bool, bool, int, bool], dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:  # stays as it was given
            continue
        decayed, in_head, depth = parameter.ndim > 1, name in fresh, depths.get(name, 0)
        group = groups.setdefault(
            (decayed, in_head, depth, name in parts),
            {
                "params": [],
                "weight_decay": recipe.weight_decay if decayed else 0.0,
                "lr_scale": (head_scale if in_head else 1.0) * recipe.layer_decay**depth,
                **({"always_adapt": decayed} if recipe.optimizer in LAYERWISE else {}),
                **({PARTS: []} if name in parts else {}),
            },
        )
        group["params"].append(parameter)
        if name in parts:
            group[PARTS].append(parts[name])
    return _optimizer(list(groups.values()), recipe)


def _split_layers(net: nn.Module) -> dict[str, Part]:
    """Return the parts of layers that no rank has whole; stages of a network are whole."""
    return {
        name: part
        for name, part in parts_of(net).items()
        if len(part.shape) > 1 and not isinstance(part, Placed)
    }


def layer_depths(net: nn.Module) -> dict[str, int]:
    """Return how many layers stand above each parameter of a `Classifier`, 0 for its head.

    The layers are timm's: stem, blocks, head. Raises UserError for a network that timm has not
    divided into layers.
    """
    from timm.models import group_parameters

    body: Any = net.net
    try:
        layers = group_parameters(body, body.group_matcher(coarse=False), reverse=True)
    except (AttributeError, NotImplementedError):
        raise UserError(
            f"recipe.layer_decay: timm does not divide {type(body).__name__} into layers; set it "
            "to 1, or choose another model."
        ) from None
    top = max(layers.values())
    return {f"net.{name}": top - layer for name, layer in layers.items()}


def _optimizer(groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    rate, momentum = peak_rate(recipe), recipe.momentum
    if recipe.optimizer == "adamw" and recipe.preconditioner:
        from timm.optim import SGDW

        # AdamW without its second moment: a preconditioned gradient has its scale.
        plain: torch.optim.Optimizer = SGDW(groups, lr=rate, momentum=0.9, dampening=0.1)
        return plain
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0)
    from skindx.training.recipes.split_optimizers import SplitLamb, SplitLars

    made: torch.optim.Optimizer
    if recipe.optimizer == "lars":
        made = SplitLars(
            groups,
            lr=rate,
            momentum=momentum,
            nesterov=momentum > 0,
            trust_coeff=recipe.trust_coefficient,
        )
    else:
        made = SplitLamb(groups, lr=rate, max_grad_norm=None)  # the engine clips
    return made
