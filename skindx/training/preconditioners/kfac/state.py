"""State of K-FAC in a checkpoint: whole, the same for every number of ranks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from skindx.core.state_checks import UnfitStateError, check_like
from skindx.training.preconditioners.kfac.eigen import Eigen
from skindx.training.preconditioners.kfac.factors import Key

State = dict[str, Any]
Shapes = Mapping[Key, tuple[int, int, int]]


def kfac_state(steps: int, averages: Mapping[Key, Tensor], bases: Mapping[Key, Eigen]) -> State:
    """Return steps, factors and eigenvectors by layer and factor.

    Eigenvectors too: they belong to factors of some steps ago, and go on to the bit.
    """
    factors: State = {}
    for (name, factor), average in averages.items():
        factors.setdefault(name, {})[factor] = average
    vectors: State = {}
    for (name, factor), eigen in bases.items():
        own = {"values": eigen.values_SW, "vectors": eigen.vectors_SWW}
        vectors.setdefault(name, {})[factor] = own
    return {"steps": steps, "factors": factors, "bases": vectors}


def load_kfac_state(
    state: State, shapes: Shapes
) -> tuple[int, dict[Key, Tensor], dict[Key, Eigen]]:
    """Undo `kfac_state`. Raises UnfitStateError for a state of other layers."""
    check_like({key: value for key, value in state.items() if key == "steps"}, {"steps": 0}, "kfac")
    if state["steps"] < 0:
        raise UnfitStateError("kfac counts below zero")
    averages: dict[Key, Tensor] = {}
    for key, value in _walk(state, "factors", shapes):
        check_like(value, torch.empty(shapes[key], device="meta"), f"kfac/factors/{key[0]}")
        averages[key] = value
    bases: dict[Key, Eigen] = {}
    for key, value in _walk(state, "bases", shapes):
        like = torch.empty(shapes[key], device="meta")
        check_like(value, {"values": like[:, :, 0], "vectors": like}, f"kfac/bases/{key[0]}")
        bases[key] = Eigen(value["values"], value["vectors"])
    return state["steps"], averages, bases


def _walk(state: State, part: str, shapes: Shapes) -> list[tuple[Key, Any]]:
    layers = state.get(part)
    if not isinstance(layers, dict) or not all(isinstance(own, dict) for own in layers.values()):
        raise UnfitStateError(f"kfac has no {part}")
    found = [
        ((name, factor), value) for name, own in layers.items() for factor, value in own.items()
    ]
    for key, _ in found:
        if key not in shapes:
            raise UnfitStateError(f"kfac has {part} of {key[0]}, which it must not have")
    return found
