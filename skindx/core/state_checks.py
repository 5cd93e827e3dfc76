"""Names, shapes and types of a state from a file, compared with those of the one that it replaces.

Hashes say that a file is unchanged, not that it fits; this is checked before anything is changed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_SHOWN = 3


class UnfitStateError(ValueError):
    """A state that does not fit; the text says where and how, as a part of a sentence."""


def check_like(given: Any, like: Any, where: str) -> None:
    """Raise UnfitStateError unless `given` has the names, shapes and types of `like`.

    Tensors and arrays need the same shape and type, dictionaries the same keys, lists the same
    length; an integer may stand for a real number.
    """
    if isinstance(like, Tensor | np.ndarray):
        if not isinstance(given, Tensor if isinstance(like, Tensor) else np.ndarray):
            raise UnfitStateError(f"{where} is not of the type {_kind(like)}")
        if tuple(given.shape) != tuple(like.shape) or given.dtype != like.dtype:
            raise UnfitStateError(f"{where} is {_words(given)}, but must be {_words(like)}")
    elif isinstance(like, Mapping):
        _check_names(given, like, where)
        for name, value in like.items():
            check_like(given[name], value, f"{where}/{name}" if where else str(name))
    elif isinstance(like, list | tuple):
        if not isinstance(given, list | tuple) or len(given) != len(like):
            raise UnfitStateError(f"{where} is not a list of {len(like)} values")
        for number, (value, wanted) in enumerate(zip(given, like, strict=True)):
            check_like(value, wanted, f"{where}/{number}")
    elif not _is_a(given, like):
        raise UnfitStateError(f"{where} is not of the type {_kind(like)}")


def check_tensors(given: Mapping[str, Tensor], like: Mapping[str, Tensor], where: str) -> None:
    """Raise UnfitStateError unless a network's weights have the names and shapes of `like`.

    Real numbers may be of another precision; whole numbers and truth values may not.
    """
    _check_names(given, like, where)
    for name, wanted in like.items():
        tensor = given[name]
        real = tensor.is_floating_point() and wanted.is_floating_point()
        if tensor.shape != wanted.shape or not (real or tensor.dtype == wanted.dtype):
            raise UnfitStateError(
                f"{where}/{name} is {_words(tensor)}, but must be {_words(wanted)}"
            )


def check_finite(given: Mapping[str, Tensor], where: str) -> None:
    """Raise UnfitStateError for a tensor with a number that is NaN or infinite."""
    for name, tensor in given.items():
        if not is_finite(tensor):
            raise UnfitStateError(f"{where}/{name} is damaged: some of its numbers are not finite")


def is_finite(tensor: Tensor) -> bool:
    """Tell whether all numbers of a tensor are finite, in one pass and without a copy."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    least, most = torch.aminmax(tensor if tensor.element_size() > 1 else tensor.float())
    return math.isfinite(least) and math.isfinite(most)


def check_list(given: Any, kind: type, where: str) -> Sequence[Any]:
    """Return `given`, a list of values of one kind. Raises UnfitStateError for anything else."""
    if not isinstance(given, list | tuple) or any(type(value) is not kind for value in given):
        raise UnfitStateError(f"{where} is not a list of {kind.__name__}")
    return given


def _check_names(given: Any, like: Mapping[str, Any], where: str) -> None:
    if not isinstance(given, Mapping):
        raise UnfitStateError(f"{where} holds no names")
    for names, word in ((like.keys() - given.keys(), "lacks"), (given.keys() - like.keys(), "has")):
        if names:
            first, more = sorted(map(str, names))[:_SHOWN], len(names) - _SHOWN
            also = f" and {more} more" if more > 0 else ""
            unknown = ", which it must not have" if word == "has" else ""
            raise UnfitStateError(f"{where} {word} {', '.join(first)}{also}{unknown}")


def _is_a(given: Any, like: Any) -> bool:
    if isinstance(like, float):
        return type(given) in (int, float)
    return type(given) is type(like)


def _kind(like: Any) -> str:
    if isinstance(like, Tensor | np.ndarray):
        return "tensor" if isinstance(like, Tensor) else "array"
    names = {bool: "truth value", int: "whole number", float: "number", str: "text"}
    return names.get(type(like), "empty value")


def _words(value: Any) -> str:
    """Return a tensor's type and shape, as in float32 (3, 4)."""
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
