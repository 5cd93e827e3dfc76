"""Split networks as whole ones: for checkpoints, evaluation and bundles."""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from skindx.training.parallel.sharding.joining import join_layers
from skindx.training.parallel.sharding.part import Part, parts_of
from skindx.training.parallel.sharding.staged import share_statistics


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Return weights and statistics with every split weight whole; every rank calls this.

    What is not split is the module's own tensor, which the next step changes.
    """
    share_statistics(module)
    parts = parts_of(module)
    return {
        name: parts[name].whole(value) if name in parts else value
        for name, value in module.state_dict().items()
    }


def whole_moments(state: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return an optimizer's state by name with every tensor whole; every rank calls this.

    What was split comes on the CPU: a device may not hold the whole of all.
    """
    parts = parts_of(module)
    return {
        name: _each_row(kept, partial(_on_cpu, parts[name])) if name in parts else kept
        for name, kept in state.items()
    }


def whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, split ones whole and on the CPU; every rank calls this."""
    parts = parts_of(module)
    return {
        name: _on_cpu(parts[name], weight) if name in parts else weight.detach()
        for name, weight in module.named_parameters()
    }


def _on_cpu(part: Part, own: Tensor) -> Tensor:
    return part.whole(own).cpu()


def own_moments(state: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Undo `whole_moments`: this rank's parts."""
    parts = parts_of(module)
    return {
        name: _each_row(kept, parts[name].own) if name in parts else kept
        for name, kept in state.items()
    }


def _each_row(kept: Mapping[str, Any], change: Any) -> dict[str, Any]:
    return {
        key: change(value) if isinstance(value, Tensor) and value.ndim else value
        for key, value in kept.items()
    }


def own_state(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Undo `whole_state`: this rank's parts."""
    parts = parts_of(module)
    return {
        name: parts[name].own(value) if name in parts else value for name, value in state.items()
    }


def whole_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of split weights as wholes."""
    return {name: part.shape for name, part in parts_of(module).items()}


class WholeCopy:
    """A whole network beside a split one, whose split weights take memory only while it is used."""

    def __init__(self, module: nn.Module) -> None:
        """Copy a split network before an engine puts its hooks on it."""
        self._copy = deepcopy(module)
        join_layers(self._copy)
        self._names = list(parts_of(module))

    def filled(self, module: nn.Module) -> nn.Module:
        """Return the copy with the weights of a split network; every rank calls this.

        It holds the network's own tensors where these are whole.
        """
        self._copy.load_state_dict(whole_state(module), assign=True)
        return self._copy.train(module.training)

    def release(self) -> None:
        """Give back the memory of the split weights."""
        for name in self._names:
            place, _, own = name.rpartition(".")
            whole = self._copy.get_parameter(name)
            empty = nn.Parameter(torch.empty(whole.shape, device="meta"))
            setattr(self._copy.get_submodule(place), own, empty)
