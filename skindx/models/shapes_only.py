"""Networks without memory: their names and shapes, to be compared with weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@contextmanager
def shapes_only() -> Iterator[None]:
    """Let modules that are built inside have shapes alone; no initial value is drawn for them."""
    with torch.device("meta"), _Undrawn():
        yield


_OF_INITIAL_VALUES = frozenset(
    {
        *(Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.mul_, Tensor.add_),
        *(Tensor.clamp_, Tensor.mul, Tensor.__rmul__),
    }
)
"""With a number each gives a tensor of the shape and type that it was given."""


class _Undrawn(TorchFunctionMode):
    """Leave out initial values: without memory torch computes them in Python, by its compiler."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if func in _OF_INITIAL_VALUES:
            tensors = [value for value in args if isinstance(value, Tensor)]
            if len(tensors) == 1 and tensors[0].is_floating_point():
                return tensors[0]
        return func(*args, **kwargs)
