"""Workload of the exchange bench: a network's shapes, gradients, backward times."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skindx.core.errors import UserError

# M = elements of the gradient

_SIDE = 224
"""Pixels of the images for which operations are counted."""


@dataclass(frozen=True)
class Load:
    """A network as an exchange sees it; all in the order in which parameters are made."""

    shapes: dict[str, tuple[int, ...]]
    work: dict[str, float]
    """Each parameter's share of the backward pass; sums to 1."""

    @property
    def elements(self) -> int:
        """How many there are in the whole gradient."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor in backward order, as `skindx.comm.fabric` lays them out."""
        return [math.prod(shape) for shape in reversed(self.shapes.values())]


def load_of(model: str) -> Load:
    """Return a timm model's load without its weights, by an empty pass over the meta device.

    A weight's share of the time is its share of the operations: elements times positions. Raises
    UserError for an unknown model.
    """
    import timm

    if not timm.is_model(model):
        raise UserError(f"timm has no model {model!r}; see timm.list_models() for those it has.")
    with torch.device("meta"):
        network = timm.create_model(model, pretrained=False).eval()
        positions: dict[str, int] = {}
        hooks = [
            module.register_forward_hook(_counting(name, positions))
            for name, module in network.named_modules()
        ]
        network(torch.empty(1, 3, _SIDE, _SIDE))
    for hook in hooks:
        hook.remove()
    work = {
        name: parameter.numel() * positions[name.rpartition(".")[0]]
        for name, parameter in network.named_parameters()
    }
    total = sum(work.values())
    return Load(
        {name: tuple(parameter.shape) for name, parameter in network.named_parameters()},
        {name: share / total for name, share in work.items()},
    )


def _counting(
    name: str, positions: dict[str, int]
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def count(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        positions[name] = math.prod(output.shape[2:])

    return count


def heavy_tailed(sizes: Sequence[int], rank: int) -> Tensor:
    """Return a gradient: cubes of normal numbers, half of each common to all ranks.

    Most elements are tiny and a few are large, and each tensor has a scale of its own, as in real
    gradients; so the largest elements of two ranks are partly the same.
    """
    common, own = np.random.default_rng(0), np.random.default_rng(rank + 1)
    flat_M = np.empty(sum(sizes), dtype=np.float32)
    start = 0
    for size in sizes:
        scale = np.float32(math.exp(common.normal()))
        part = common.standard_normal(size, dtype=np.float32)
        part += own.standard_normal(size, dtype=np.float32)
        flat_M[start : start + size] = scale * part**3
        start += size
    return torch.from_numpy(flat_M)
