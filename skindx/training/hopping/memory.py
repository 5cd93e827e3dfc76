"""Can a worker hold a member? One member at a time is in its memory, however many there are."""

import torch
from torch import nn

from skindx.core.errors import UserError
from skindx.core.machine import free_memory
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.parallel.devices import resolve_accelerator

_MOMENTS = {"adamw": 2, "lamb": 2, "sgd": 1, "lars": 1}
"""Copies of the weights that an optimizer keeps."""


def state_bytes(network: nn.Module, recipe: Recipe) -> int:
    """Return what a member takes of memory in training: weights, gradients, moments, average.

    Activations come on top; they depend on the batch.
    """
    size = sum(weight.numel() * weight.element_size() for weight in network.parameters())
    return size * (2 + _MOMENTS[recipe.optimizer] + (recipe.ema is not None))


def check_memory(
    settings: TrainSettings, member: MemberSettings, network: nn.Module, workers: int
) -> None:
    """Raise UserError for a member that is larger than the memory of one of this machine's workers.

    `network` may be on the meta device.
    """
    needed = state_bytes(network, settings.recipe_of(member))
    if resolve_accelerator(settings.engine.accelerator) == "cuda":
        there = torch.cuda.mem_get_info()[0]
    else:
        there = free_memory() // workers
    if needed > there:
        raise UserError(
            f"member {member.name}: {member.model} takes {needed / 1e9:.1f} GB in training without "
            f"its activations, and each of {workers} workers has {there / 1e9:.1f} GB; set "
            "engine.ranks lower, or choose a smaller model."
        )
