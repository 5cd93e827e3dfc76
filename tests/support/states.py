"""States of a network that go through a pipe, and whether two of them are near each other."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def as_arrays(state: Any) -> Any:
    """Return a state with copied arrays in place of its tensors."""
    if isinstance(state, dict):
        return {key: as_arrays(value) for key, value in state.items()}
    return state.detach().clone().numpy() if isinstance(state, Tensor) else state


def assert_near(
    found: Mapping[str, Any], expected: Mapping[str, Tensor], relative: float, least: float = 0.0
) -> None:
    """Assert that each array is its tensor up to a share of the tensor's norm, and `least`."""
    for name, value in found.items():
        difference = (torch.from_numpy(value) - expected[name]).float().norm()
        assert difference <= relative * expected[name].float().norm() + least, name
