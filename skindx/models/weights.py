"""Named tensors from a file of weights, whichever training script wrote it; no program runs."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skindx.core.errors import UserError

_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
"""Where timm's and torchvision's checkpoints keep the weights; averaged ones first."""

_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What data-parallel wrappers, torch.compile and Lightning put before every name."""


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the named tensors of a safetensors file, a state dict or a training checkpoint.

    A pickle is read for its tensors and plain values alone. Raises UserError for what is no such
    file.
    """
    if not path.is_file():
        raise UserError(f"weights {path} do not exist; check the path.")
    try:
        read = _read(path)
    except Exception as error:
        raise UserError(
            f"weights {path} cannot be read as safetensors or a plain state dict "
            f"({type(error).__name__}); give a file that holds tensors only."
        ) from None
    if not isinstance(read, dict):
        raise UserError(f"weights {path} hold a {type(read).__name__}, not named tensors.")
    return _bare({str(name): tensor for name, tensor in _unwrap(read).items()})


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    # timm's checkpoints hold the command line beside the weights: a namespace of plain values.
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _unwrap(read: dict[Any, Any]) -> Mapping[Any, Any]:
    for wrapper in _WRAPPERS:
        inner = read.get(wrapper)
        if isinstance(inner, Mapping):
            return inner
    return read


def _bare(read: dict[str, Any]) -> dict[str, Tensor]:
    """Keep the tensors, under names without the prefixes that all of them share."""
    state = {name: value for name, value in read.items() if isinstance(value, Tensor)}
    while prefix := next((p for p in _PREFIXES if _all_start(state, p)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _all_start(state: dict[str, Tensor], prefix: str) -> bool:
    return bool(state) and all(name.startswith(prefix) for name in state)
