"""How a recipe moves weights: optimizer and moving average."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from skindx.core.errors import UserError
from skindx.core.kinds import load_object
from skindx.core.state_checks import check_like
from skindx.models.classifier.heads import head_place
from skindx.training.config.recipe import Ema, Recipe
from skindx.training.method import method_of


def build_optimizer(net: nn.Module, recipe: Recipe, fresh: Iterable[str]) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over groups with a decay and a share of the rate each.

    `fresh` names the parameters that start from random values beside given ones; they take
    `head_learning_rate`. Biases and norms are never decayed, and LARS and LAMB adapt the rate of
    the decayed ones alone (You et al. 2017 and 2019), by the norms of whole layers. Muon leaves the
    last layer and what is no matrix to AdamW, at the same rate and decay. Raises UserError.
    """
    fresh = set(fresh)
    head_scale = (recipe.head_learning_rate or recipe.learning_rate) / recipe.learning_rate
    depths = layer_depths(net) if recipe.layer_decay < 1 else {}
    chosen = recipe.optimizer_kind
    last = _last_layer(net) if chosen.matrices else ()
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:  # stays as it was given
            continue
        decayed, in_head, depth = parameter.ndim > 1, name in fresh, depths.get(name, 0)
        options = chosen.options_of(parameter.shape, last=name.startswith(last))
        group = groups.setdefault(
            (decayed, in_head, depth, *options.values()),
            {
                "params": [],
                "weight_decay": recipe.weight_decay if decayed else 0.0,
                "lr_scale": (head_scale if in_head else 1.0) * recipe.layer_decay**depth,
                **options,
            },
        )
        group["params"].append(parameter)
    kind, options = load_object(chosen.builds)(recipe)
    made = list(groups.values())
    optimizer: torch.optim.Optimizer = kind(made, lr=recipe.peak_rate, **options)
    return optimizer


def _last_layer(net: nn.Module) -> str:
    """Return how the names of a classifier's last weights begin. Raises UserError for none."""
    try:
        return f"net.{head_place(net.net)}."  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(
            f"recipe.optimizer=muon does not work with this model, because {error}; set "
            "recipe.optimizer=adamw, or choose another model."
        ) from None


Made = tuple[type[torch.optim.Optimizer], dict[str, Any]]
"""Class of an optimizer, and its options beside groups and rate."""


def adamw(recipe: Recipe) -> Made:
    """Return AdamW; a preconditioned gradient has its scale, and gets no second moment."""
    if not recipe.preconditioner:
        return torch.optim.AdamW, {}
    from timm.optim import SGDW

    return SGDW, {"momentum": 0.9, "dampening": 0.1}


def sgd(recipe: Recipe) -> Made:
    """Return stochastic gradient descent."""
    return torch.optim.SGD, {"momentum": recipe.momentum, "nesterov": recipe.momentum > 0}


def lars(recipe: Recipe) -> Made:
    from timm.optim import Lars

    return Lars, {
        "momentum": recipe.momentum,
        "nesterov": recipe.momentum > 0,
        "trust_coeff": recipe.trust_coefficient,
    }


def lamb(recipe: Recipe) -> Made:
    """Return timm's LAMB, without its own clipping: the engine clips."""
    from timm.optim import Lamb

    return Lamb, {"max_grad_norm": None}


def muon(recipe: Recipe) -> Made:
    """Return timm's Muon: torch's own refuses convolutions."""
    from timm.optim import Muon

    return Muon, {}


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
            f"timm cannot divide {type(body).__name__} into layers; set recipe.layer_decay=1, or "
            "choose another model."
        ) from None
    top = max(layers.values())
    return {f"net.{name}": top - layer for name, layer in layers.items()}


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
        self._average.update(module, step=steps)

    def state_dict(self) -> dict[str, Any]:
        return method_of(self.module).whole_state(self.module)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        method = method_of(self.module)
        shapes = method.whole_shapes(self.module)
        like = {
            name: torch.empty(shapes[name], device="meta") if name in shapes else value
            for name, value in self.module.state_dict().items()
        }
        check_like(state, like, "average")
        self.module.load_state_dict(method.local_state(state, self.module))
