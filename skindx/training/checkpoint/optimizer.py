"""An optimizer's state by the names of its parameters instead of their numbers."""

from typing import Any

import torch
from torch import Tensor, nn

from skindx.training.checkpoint.state import State


def named_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    """Return what the optimizer keeps of each parameter: moments, momentum, steps."""
    names: dict[Tensor, str] = {each: name for name, each in module.named_parameters()}
    return {names[parameter]: dict(kept) for parameter, kept in optimizer.state.items()}


def load_named_state(optimizer: torch.optim.Optimizer, module: nn.Module, state: State) -> None:
    """Undo `named_state`; rates and other settings stay what the optimizer was made with."""
    names: dict[Tensor, str] = {each: name for name, each in module.named_parameters()}
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbered: dict[str, Any] = optimizer.state_dict()
    numbered["state"] = {
        number: dict(state[names[parameter]])
        for number, parameter in enumerate(every)
        if names[parameter] in state
    }
    optimizer.load_state_dict(numbered)
