"""An optimizer's state under ZeRO by parameter name, whole: it fits any stage and rank count."""

from typing import Any

import torch
from torch import Tensor, nn

from skindx.training.checkpoint.fitting import trained_parameters
from skindx.training.checkpoint.state import GROUP_STEP, State, step_of, take_step

# `utils` is deepspeed.utils, `zero` the optimizer that DeepSpeed made; every rank calls these.


def _partitions(zero: Any) -> list[Tensor]:
    """Return this rank's flat parts of the weights, which the optimizer keeps its state for."""
    if hasattr(zero, "single_partition_of_fp32_groups"):  # stages 1 and 2
        return list(zero.single_partition_of_fp32_groups)
    return list(zero.fp32_partitioned_groups_flat)


def _link(zero: Any) -> None:
    """Tell the parameters where their state is (stages 1 and 2).

    DeepSpeed does so itself once, after its step on the first parameter group: those of the other
    groups then know of no state.
    """
    if hasattr(zero, "_lazy_init_hp_params_optimizer_state"):
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()


def zero_state(utils: Any, zero: Any, module: nn.Module) -> State:
    """Gather what the optimizer keeps of each trained parameter; every rank gets all of it."""
    kept: dict[str, Any] = zero.optimizer.state.get(_partitions(zero)[0], {})
    state: State = {}
    if not kept:
        return state  # before the first step
    _link(zero)
    steps = step_of(zero.optimizer.param_groups[0])
    for name, parameter in trained_parameters(module):
        state[name] = steps | {
            key: utils.safe_get_full_optimizer_state(parameter, key).cpu()
            if isinstance(value, Tensor) and value.ndim
            else value
            for key, value in kept.items()
        }
    return state


def load_whole_state(utils: Any, zero: Any, module: nn.Module, state: State) -> None:
    """Undo `zero_state`: each rank takes its part."""
    if not state:
        return
    sample = next(iter(state.values()))
    for part in _partitions(zero):
        zero.optimizer.state[part] = {
            key: torch.zeros_like(part)
            if isinstance(value, Tensor) and value.ndim
            else _copied(value)
            for key, value in sample.items()
            if key != GROUP_STEP
        }
    for group in zero.optimizer.param_groups:
        take_step(group, [sample])
    _link(zero)
    for name, parameter in trained_parameters(module):
        for key, value in state[name].items():
            if isinstance(value, Tensor) and value.ndim:
                on_device = value.to(torch.float32).to(zero.device)
                if hasattr(parameter, "ds_id"):
                    part = _own_part(zero, parameter, on_device)
                    utils.safe_set_local_optimizer_state(parameter, part, key)
                else:
                    utils.safe_set_full_optimizer_state(parameter, on_device, key)


def load_whole_weights(utils: Any, zero: Any, module: nn.Module, weights: State) -> None:
    """Give each rank its part of the weights that ZeRO steps on; every rank calls this."""
    for name, parameter in trained_parameters(module):
        value = weights[name].to(parameter.device)
        if hasattr(parameter, "ds_id"):
            utils.safe_set_local_fp32_param(parameter, _own_part(zero, parameter, value))
        else:
            utils.safe_set_full_fp32_param(parameter, value)


def _own_part(zero: Any, parameter: Any, whole: Tensor) -> Tensor:
    """Return this rank's part under stage 3, padded: DeepSpeed's setter of a whole is not."""
    size, rank = parameter.partition_numel(), zero._get_param_partition_rank(parameter)
    padded = whole.new_zeros(size * (rank + 1))
    flat = whole.flatten()[: len(padded)]
    padded[: len(flat)] = flat
    return padded[size * rank :]


def discard(zero: Any) -> None:
    """Drop accumulated gradients, as DeepSpeed does itself when fp16 overflows."""
    zero.zero_grad()
    for group in zero.averaged_gradients:
        zero.averaged_gradients[group] = None
    zero.micro_step_id = -1 if hasattr(zero, "single_partition_of_fp32_groups") else 0


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
