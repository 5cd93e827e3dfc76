"""Nested state as named tensors (safetensors) and plain values (JSON); an optimizer's by name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.models.tensors import load_tensors

State = dict[str, Any]
"""Names to tensors, arrays, numbers, strings, and lists and dictionaries of them."""

TENSORS, VALUES = "tensors.safetensors", "values.json"

GROUP_STEP = "group_step"
"""A key beside a parameter's moments: how many steps its group has taken, where that counts."""

_LONGEST_VALUES, _DEEPEST = 256 * MEGABYTE, 200

_TENSOR, _ARRAY, _LITERAL = "$tensor", "$array", "$dict"


def split(state: State) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors of `state` by their path, and its values with references to them."""
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()

    def put(value: Tensor, path: str) -> str:
        held = value.detach().cpu().contiguous()
        # safetensors refuses tensors that share memory, as tied weights do.
        if held.untyped_storage().data_ptr() in storages:
            held = held.clone()
        storages.add(held.untyped_storage().data_ptr())
        tensors[path] = held
        return path

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return {_TENSOR: put(value, path)}
        if isinstance(value, np.ndarray):
            return {_ARRAY: put(torch.from_numpy(np.ascontiguousarray(value)), path)}
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value), path
            return {_LITERAL: {key: walk(item, f"{path}/{key}") for key, item in value.items()}}
        if isinstance(value, list | tuple):
            return [walk(item, f"{path}/{number}") for number, item in enumerate(value)]
        if isinstance(value, np.generic):
            return value.item()
        assert value is None or isinstance(value, bool | int | float | str), (path, type(value))
        return value

    return tensors, {key: walk(value, key) for key, value in state.items()}


def join(tensors: dict[str, Tensor], values: Any) -> State:
    """Undo `split`; tuples come back as lists."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        if kind == _TENSOR:
            return tensors[inner]
        if kind == _ARRAY:
            return tensors[inner].numpy()
        return {key: walk(item) for key, item in inner.items()}

    return {key: walk(value) for key, value in values.items()}


def write_state(folder: Path, state: State) -> None:
    """Write `state` into a folder that is made for it; what was there is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors, values = split(state)
    save_file(tensors, folder / TENSORS)
    write_json(folder / VALUES, values)


def read_state(folder: Path) -> State:
    """Read what `write_state` wrote, on the CPU. Raises UserError for anything else."""
    values = read_json(folder / VALUES, _LONGEST_VALUES, finite=False, deepest=_DEEPEST)
    tensors = load_tensors(folder / TENSORS)
    try:
        return join(tensors, values)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder} does not hold the state of a training ({type(error).__name__}); remove "
            "that checkpoint, or train again."
        ) from None


def named_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    """Return what the optimizer keeps of each parameter: moments, momentum, steps."""
    names: dict[Tensor, str] = {weight: name for name, weight in module.named_parameters()}
    steps: dict[Tensor, State] = {
        parameter: step_of(group)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return {names[one]: {**kept, **steps[one]} for one, kept in optimizer.state.items()}


def load_named_state(optimizer: torch.optim.Optimizer, module: nn.Module, state: State) -> None:
    """Undo `named_state`; rates and other settings stay what the optimizer was made with."""
    names: dict[Tensor, str] = {weight: name for name, weight in module.named_parameters()}
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbered: dict[str, Any] = optimizer.state_dict()
    numbered["state"] = {
        number: {key: value for key, value in state[names[parameter]].items() if key != GROUP_STEP}
        for number, parameter in enumerate(every)
        if names[parameter] in state
    }
    for group, packed in zip(optimizer.param_groups, numbered["param_groups"], strict=True):
        take_step(packed, [state[names[one]] for one in group["params"] if names[one] in state])
    optimizer.load_state_dict(numbered)


def step_of(group: State) -> State:
    """Return the steps that an optimizer counts in a group, to stand beside what it keeps of each.

    Nothing for an optimizer that counts them for each parameter, or not at all.
    """
    return {GROUP_STEP: int(group["step"])} if "step" in group else {}


def take_step(group: State, kept: Iterable[State]) -> None:
    """Let a group count on from what `step_of` put beside the state of its parameters.

    A checkpoint of before 0.2.0 has no such number: the group counts as it did.
    """
    for own in kept:
        if GROUP_STEP in own:
            group["step"] = torch.tensor(float(own[GROUP_STEP]))
            return
