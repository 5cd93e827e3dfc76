"""Wide linear layers of a network, found by one forward pass of one image."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from skindx.training.config.parallel import OwtSettings
from skindx.training.parallel.sharding.owt import can_be_split


@dataclass(frozen=True)
class _Use:
    """Input and output sizes of a layer for one image."""

    values_in: int
    values_out: int


def wide_layers(
    net: nn.Module, image: Tensor, batch: int, ranks: int, settings: OwtSettings
) -> dict[str, nn.Module]:
    """Return the layers to split, by name, in the order in which an image passes them."""
    holders = Counter(
        id(parameter) for layer in net.modules() for parameter in layer.parameters(recurse=False)
    )
    found = {}
    for name, layer, use in _uses(net, image):
        weight = layer.get_parameter("weight")
        tied = any(holders[id(parameter)] > 1 for parameter in layer.parameters(recurse=False))
        # A row of weights meets an image once: its outputs have no positions.
        if tied or use.values_out != len(weight) or not can_be_split(layer, ranks):
            continue
        least = settings.min_weights
        if least == "auto":
            least = batch * use.values_in + batch * use.values_out // ranks
        if weight.numel() >= least:
            found[name] = layer
    return found


def _uses(net: nn.Module, image: Tensor) -> list[tuple[str, nn.Module, _Use]]:
    """Return the layers with outputs that one image passes just once, as it passes them."""
    passed: dict[str, list[_Use]] = {}
    layers = {
        name: layer for name, layer in net.named_modules() if type(layer) in (nn.Linear, nn.Conv2d)
    }

    def note(name: str, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        passed.setdefault(name, []).append(_Use(inputs[0].numel(), output.numel()))

    hooks = [layer.register_forward_hook(partial(note, name)) for name, layer in layers.items()]
    training = net.training
    try:
        with torch.no_grad():
            net.eval()(image)
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return [(name, layers[name], uses[0]) for name, uses in passed.items() if len(uses) == 1]
