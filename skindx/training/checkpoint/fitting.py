"""Are the parts of a checkpoint those of this training? Its seal says only that it is whole."""

from collections import defaultdict
from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from skindx.core.state_checks import UnfitStateError, check_like
from skindx.training.checkpoint.state import GROUP_STEP, step_of
from skindx.training.parallel.sharding.whole import whole_shapes


def part_of(state: Any, name: str) -> dict[str, Any]:
    """Return a named part of a state. Raises UnfitStateError when it is not there, or no state."""
    part = state.get(name) if isinstance(state, dict) else None
    if not isinstance(part, dict):
        raise UnfitStateError(f"it has no {name}")
    return part


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that learn, by name: of a frozen one no optimizer keeps anything."""
    return [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]


def check_weights(found: Any, module: nn.Module, where: str) -> None:
    """Raise UnfitStateError unless `found` holds exactly the parameters of a module."""
    check_like(found, _shapes(module), where)


def check_optimizer(
    found: Mapping[str, Any], optimizer: torch.optim.Optimizer, module: nn.Module, *, complete: bool
) -> None:
    """Raise UnfitStateError unless `found` is what an optimizer of this kind keeps of a module.

    Frozen parameters have nothing there. Those without a gradient may lack; where it has to be
    `complete`, all may lack or none.
    """
    trained = {name for name, _ in trained_parameters(module)}
    kept = _kept(optimizer)
    shapes = {name: shape for name, shape in _shapes(module).items() if name in trained}
    if complete and found and found.keys() != shapes.keys():
        raise UnfitStateError("optimizer does not hold all parameters")
    for name, values in found.items():
        if name not in shapes:
            raise UnfitStateError(f"optimizer has {name}, which is no parameter that learns")
        like = {
            key: torch.empty_like(shapes[name], dtype=value.dtype) if _is_row(value) else value
            for key, value in kept.items()
        }
        if isinstance(values, Mapping) and GROUP_STEP not in values:
            like.pop(GROUP_STEP, None)  # a checkpoint of before 0.2.0
        check_like(_plain(values), _plain(like), f"optimizer/{name}")
        if not values.get(GROUP_STEP, 0) >= 0:
            raise UnfitStateError(f"optimizer/{name}/{GROUP_STEP} counts below zero")


def check_position(found: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Raise UnfitStateError unless `found` is a place in a training, one history row an epoch."""
    without = {name: value for name, value in like.items() if name != "history"}
    history = found.get("history")
    check_like({k: v for k, v in found.items() if k != "history"}, without, "position")
    if any(isinstance(value, int) and value < 0 for value in found.values()):
        raise UnfitStateError("position counts below zero")
    if not isinstance(history, list) or len(history) != found["epoch"]:
        raise UnfitStateError("history does not have one row for each epoch")
    for row in history:
        if not isinstance(row, Mapping) or any(
            type(value) not in (int, float) for value in row.values()
        ):
            raise UnfitStateError("history holds more than numbers")


def _shapes(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters' shapes and types; of some a rank may hold a part alone."""
    split = whole_shapes(module)
    return {
        name: torch.empty(
            split.get(name, getattr(weight, "ds_shape", weight.shape)),
            dtype=weight.dtype,
            device="meta",
        )
        for name, weight in module.named_parameters()
    }


def _kept(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what an optimizer keeps of a small parameter after a step; it stays as it is."""
    parameter = nn.Parameter(torch.zeros(2, 3))
    parameter.grad = torch.zeros_like(parameter)
    other = copy(optimizer)
    other.state = defaultdict(dict)
    other.param_groups = [{**optimizer.defaults, "params": [parameter]}]
    other.step()
    return {**other.state[parameter], **step_of(other.param_groups[0])}


def _is_row(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _plain(values: Any) -> Any:
    """Return values in which a tensor of one number is that number: optimizers count in both."""
    if not isinstance(values, Mapping):
        return values
    return {
        key: float(value)
        if (isinstance(value, Tensor) and value.ndim == 0) or type(value) is int
        else value
        for key, value in values.items()
    }
