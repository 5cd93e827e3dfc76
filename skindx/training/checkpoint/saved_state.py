"""Nested state as named tensors (safetensors) and plain values (JSON), an optimizer's by name.

Checks whether the parts of a checkpoint are those of this training: its seal says only that it is
whole. Batch-norm statistics are each rank's own, and their mean.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError, check_like
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.models.bounded_files import load_tensors
from skindx.training.method import method_of

State = dict[str, Any]
"""Names to tensors, arrays, numbers, strings, and lists and dictionaries of them."""

TENSORS, VALUES = "tensors.safetensors", "values.json"

GROUP_STEP = "group_step"
"""A key beside a parameter's moments: how many steps its group has taken, where that counts."""

FALLBACK = "use_fallback"
"""An option of groups that Muon leaves to AdamW: it keeps other things of them."""

_LONGEST_VALUES, _DEEPEST = 256 * MEGABYTE, 200

_TENSOR, _ARRAY, _LITERAL = "$tensor", "$array", "$dict"


class Shared(Protocol):
    """What all ranks hold alike (or share out): saved once. Every rank calls both."""

    def state_dict(self) -> State:
        """Return the whole state, the same on every rank."""

    def load_state_dict(self, state: State, /) -> None:
        """Go on from a state."""


class PerRank(Protocol):
    """What each rank holds alone: an exchange's residual, batch-norm statistics, random numbers."""

    def state_dict(self) -> State:
        """Return this rank's state."""

    def load_state_dict(self, states: Sequence[State], /) -> None:
        """Go on from all ranks' states, in rank order; there may have been more or fewer then."""


SplitState = tuple[dict[str, Tensor], Any]
"""Tensors by their path, and plain values with references to them."""


def split(state: State, *, copy: bool = False) -> SplitState:
    """Return a state in two parts; with `copy` it stays as it is while the training goes on."""
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()

    def put(value: Tensor, path: str) -> str:
        held = value.detach().cpu().contiguous()
        ours = held.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory, as tied weights do.
        if held.untyped_storage().data_ptr() in storages or (copy and not ours):
            held = _copy(held)
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


def _copy(tensor: Tensor) -> Tensor:
    """Copy with NumPy, on one core: torch's threads take longer where others are at work."""
    raw = tensor.view(-1).view(torch.uint8).numpy().copy()
    return torch.from_numpy(raw).view(tensor.dtype).view(tensor.shape)


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors and arrays of a state with their paths, where they lie."""
    if isinstance(value, Tensor | np.ndarray):
        yield path, torch.as_tensor(value)
    elif isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from tensors_in(item, f"{path}/{name}" if path else str(name))


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


def write_state(folder: Path, state: SplitState) -> None:
    """Write a state into a folder that is made for it; what was there is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors, values = state
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
            f"{folder} does not have the state of a training ({type(error).__name__}); delete "
            "this checkpoint and run the same command again."
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


def mean_of(values: Sequence[Any]) -> Any:
    """Return the mean of tensors of real numbers, taken in 64 bits; of all else the first."""
    first = values[0]
    if not isinstance(first, Tensor) or not first.is_floating_point():
        return first
    return torch.stack([value.double() for value in values]).mean(0).to(first.dtype)


def step_of(group: State) -> State:
    """Return the steps that an optimizer counts in a group, to stand beside what it keeps of each.

    Nothing for an optimizer that counts them for each parameter, or not at all.
    """
    return {GROUP_STEP: int(group["step"])} if "step" in group else {}


def take_step(group: State, kept: Iterable[State]) -> None:
    """Let a group count on from what `step_of` put beside the state of its parameters.

    A checkpoint of before 0.2.0 has no such number: the group counts as it did.
    """
    for state in kept:
        if GROUP_STEP in state:
            group["step"] = torch.tensor(float(state[GROUP_STEP]))
            return


def part_of(state: Any, name: str) -> dict[str, Any]:
    """Return a named part of a state. Raises UnfitStateError when it is not there, or no state."""
    part = state.get(name) if isinstance(state, dict) else None
    if not isinstance(part, dict):
        raise UnfitStateError(f"the checkpoint has no {name}")
    return part


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that learn, by name: of a frozen one no optimizer keeps anything."""
    return [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]


def check_weights(weights: Any, module: nn.Module, where: str) -> None:
    """Raise UnfitStateError unless `weights` holds exactly the parameters of a module."""
    check_like(weights, _shapes(module), where)


def check_optimizer(
    moments: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    module: nn.Module,
    *,
    complete: bool,
) -> None:
    """Raise UnfitStateError unless `moments` is what an optimizer of this kind keeps of a module.

    Frozen parameters have nothing there. Those without a gradient may lack; where it has to be
    `complete`, all may lack or none.
    """
    trained = dict(trained_parameters(module))
    left_out = {
        w for group in optimizer.param_groups if group.get(FALLBACK) for w in group["params"]
    }
    kept = {left: _kept(optimizer, left) for left in {False, bool(left_out)}}
    shapes = {name: shape for name, shape in _shapes(module).items() if name in trained}
    if complete and moments and moments.keys() != shapes.keys():
        raise UnfitStateError("the state of the optimizer does not have all parameters")
    for name, values in moments.items():
        if name not in shapes:
            raise UnfitStateError(
                f"the state of the optimizer has {name}, which is not a trained parameter"
            )
        like = {
            key: torch.empty_like(shapes[name], dtype=value.dtype) if _is_row(value) else value
            for key, value in kept[trained[name] in left_out].items()
        }
        if isinstance(values, Mapping) and GROUP_STEP not in values:
            like.pop(GROUP_STEP, None)  # a checkpoint of before 0.2.0
        check_like(_plain(values), _plain(like), f"optimizer/{name}")
        if any(values[key] is not value for key, value in like.items() if type(value) is bool):
            raise UnfitStateError(f"optimizer/{name} was saved by another kind of optimizer step")
        if not values.get(GROUP_STEP, 0) >= 0:
            raise UnfitStateError(f"optimizer/{name}/{GROUP_STEP} is below zero")


def check_position(position: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Raise UnfitStateError unless `position` is one of a training, with a history row an epoch."""
    without = {name: value for name, value in like.items() if name != "history"}
    history = position.get("history")
    check_like({k: v for k, v in position.items() if k != "history"}, without, "position")
    if any(isinstance(value, int) and value < 0 for value in position.values()):
        raise UnfitStateError("a number in position is below zero")
    if not isinstance(history, list) or len(history) != position["epoch"]:
        raise UnfitStateError("history does not have one row for each epoch")
    for row in history:
        if not isinstance(row, Mapping) or any(
            type(value) not in (int, float) for value in row.values()
        ):
            raise UnfitStateError("history has values that are not numbers")


def _shapes(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters' shapes and types; of some a rank may hold a part alone."""
    whole = method_of(module).whole_shapes(module)
    return {
        name: torch.empty(
            whole.get(name, getattr(weight, "ds_shape", weight.shape)),
            dtype=weight.dtype,
            device="meta",
        )
        for name, weight in module.named_parameters()
    }


def _kept(optimizer: torch.optim.Optimizer, left_out: bool) -> dict[str, Any]:
    """Return what an optimizer keeps of a small matrix after a step; it stays as it is."""
    parameter = nn.Parameter(torch.zeros(4, 5))
    parameter.grad = torch.zeros_like(parameter)
    other = copy(optimizer)
    other.state = defaultdict(dict)
    other.param_groups = [{**optimizer.defaults, FALLBACK: left_out, "params": [parameter]}]
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


class Buffers:
    """The buffers of networks, which differ by rank until their average is taken."""

    def __init__(self, networks: Sequence[nn.Module], rank: int, world: int) -> None:
        self._networks, self._rank, self._world = tuple(networks), rank, world
        self._kept: dict[torch.dtype, list[Tensor]] = {}

    def _named(self) -> dict[str, Tensor]:
        return {
            f"{number}.{name}": buffer
            for number, network in enumerate(self._networks)
            for name, buffer in network.named_buffers()
        }

    def state_dict(self) -> State:
        return dict(self._named())

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Take this rank's own; on another number of ranks the mean of all (counts: the first)."""
        if len(states) == self._world:
            result = states[self._rank]
            check_like(result, self._named(), "statistics")
        else:
            every = list(states)
            for state in every:
                check_like(state, self._named(), "statistics")
            result = {name: mean_of([state[name] for state in every]) for name in every[0]}
        with torch.no_grad():
            for name, buffer in self._named().items():
                buffer.copy_(result[name])

    def remember(self) -> None:
        """Keep a copy to go back to: of a hundred small tensors in each step, so all at once."""
        for dtype, buffers in self._by_dtype().items():
            if dtype not in self._kept:
                self._kept[dtype] = [torch.empty_like(buffer) for buffer in buffers]
            torch._foreach_copy_(self._kept[dtype], buffers)

    def go_back(self) -> None:
        """Undo what happened since `remember`."""
        for dtype, buffers in self._by_dtype().items():
            torch._foreach_copy_(buffers, self._kept[dtype])

    def _by_dtype(self) -> dict[torch.dtype, list[Tensor]]:
        result: dict[torch.dtype, list[Tensor]] = {}
        for network in self._networks:
            for buffer in network.buffers():
                result.setdefault(buffer.dtype, []).append(buffer)
        return result
