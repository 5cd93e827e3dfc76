"""Compares a state that was read from a file with the one that it replaces.

Hashes say that a file is unchanged, not that it fits. What takes a state from a file
compares names, shapes and types here with what it holds itself, before anything is changed.
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


def check_like(found: Any, like: Any, where: str) -> None:
    """Raise UnfitStateError unless `found` has the names, shapes and types of `like`.

    Tensors and arrays need the same shape and type, dictionaries the same keys, lists the same
    length; an integer may stand for a real number.
    """
    if isinstance(like, Tensor | np.ndarray):
        if not isinstance(found, Tensor if isinstance(like, Tensor) else np.ndarray):
            raise UnfitStateError(f"{where} is no {_kind(like)}")
        if tuple(found.shape) != tuple(like.shape) or found.dtype != like.dtype:
            raise UnfitStateError(
                f"{where} is {_words(found)} and must be {_words(like)}",
            )
    elif isinstance(like, Mapping):
        _check_names(found, like, where)
        for name, value in like.items():
            check_like(found[name], value, f"{where}/{name}" if where else str(name))
    elif isinstance(like, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(like):
            raise UnfitStateError(f"{where} is no list of {len(like)}")
        for number, (value, own) in enumerate(zip(found, like, strict=True)):
            check_like(value, own, f"{where}/{number}")
    elif not _is_a(found, like):
        raise UnfitStateError(f"{where} is no {_kind(like)}")


def check_tensors(found: Mapping[str, Tensor], like: Mapping[str, Tensor], where: str) -> None:
    """Raise UnfitStateError unless a network's weights have the names and shapes of `like`.

    Real numbers may be of another precision; whole numbers and truth values may not.
    """
    _check_names(found, like, where)
    for name, own in like.items():
        given = found[name]
        same = given.dtype == own.dtype or (given.is_floating_point() and own.is_floating_point())
        if given.shape != own.shape or not same:
            raise UnfitStateError(f"{where}/{name} is {_words(given)} and must be {_words(own)}")


def check_finite(found: Mapping[str, Tensor], where: str) -> None:
    """Raise UnfitStateError for a tensor with a number that is NaN or infinite."""
    for name, tensor in found.items():
        if not is_finite(tensor):
            raise UnfitStateError(f"{where}/{name} holds numbers that are not finite: damaged")


def is_finite(tensor: Tensor) -> bool:
    """Tell whether all numbers of a tensor are finite, in one pass and without a copy."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    least, most = torch.aminmax(tensor if tensor.element_size() > 1 else tensor.float())
    return math.isfinite(least) and math.isfinite(most)


def check_list(found: Any, kind: type, where: str) -> Sequence[Any]:
    """Return `found`, a list of values of one kind. Raises UnfitStateError for anything else."""
    if not isinstance(found, list | tuple) or any(type(value) is not kind for value in found):
        raise UnfitStateError(f"{where} is no list of {kind.__name__}")
    return found


def _check_names(found: Any, like: Mapping[str, Any], where: str) -> None:
    if not isinstance(found, Mapping):
        raise UnfitStateError(f"{where} holds no names")
    for names, word in ((like.keys() - found.keys(), "lacks"), (found.keys() - like.keys(), "has")):
        if names:
            first, more = sorted(map(str, names))[:_SHOWN], len(names) - _SHOWN
            also = f" and {more} more" if more > 0 else ""
            unknown = ", which it must not have" if word == "has" else ""
            raise UnfitStateError(f"{where} {word} {', '.join(first)}{also}{unknown}")


def _is_a(found: Any, like: Any) -> bool:
    if isinstance(like, float):
        return type(found) in (int, float)
    return type(found) is type(like)


def _kind(like: Any) -> str:
    if isinstance(like, Tensor | np.ndarray):
        return "tensor" if isinstance(like, Tensor) else "array"
    names = {bool: "truth value", int: "whole number", float: "number", str: "text"}
    return names.get(type(like), "empty value")


def _words(value: Any) -> str:
    """Return a tensor's type and shape, as in float32 (3, 4)."""
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
