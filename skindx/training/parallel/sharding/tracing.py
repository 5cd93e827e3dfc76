"""A network as a graph of its layers, in the order in which an image passes them."""

from copy import copy
from typing import Any, NamedTuple

from torch import fx, nn

_UNTRACEABLE = (
    *(fx.proxy.TraceError, ArithmeticError, AssertionError, AttributeError, LookupError),
    *(NameError, RuntimeError, TypeError, ValueError),
)
"""What code raises that decides by the values or the number of its inputs."""


class _LayerTracer(fx.Tracer):
    """Keeps layers of torch and timm whole, and what cannot be followed."""

    def __init__(self, opaque: set[type[nn.Module]]) -> None:
        super().__init__()
        self._opaque = opaque
        self.failed: nn.Module | None = None
        """The innermost module whose code could not be followed."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Tell whether a module is a layer."""
        of_timm = type(m).__module__.startswith("timm.layers")
        whole = of_timm or type(m) in self._opaque
        return whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Follow a module's code, or take it for a layer."""
        try:
            return super().call_module(m, forward, args, kwargs)
        except _UNTRACEABLE:
            self.failed = self.failed or m
            raise


class Traced(NamedTuple):
    """The layers of a network in training mode."""

    graph: fx.Graph
    root: nn.Module
    """Has the same layers, and what the code has made of constants."""


def trace_layers(net: nn.Module) -> Traced | None:
    """Return the layers of a network as a graph; None: its code hides them."""
    opaque: set[type[nn.Module]] = set()
    modes = {layer: layer.training for layer in net.modules()}
    net.train()  # what is decided by the mode alone is decided now
    try:
        while True:
            tracer, root = _LayerTracer(opaque), _of_one_input(net)
            try:
                return Traced(tracer.trace(root), root)
            except _UNTRACEABLE:
                if tracer.failed is None or type(tracer.failed) in opaque:
                    return None
                opaque.add(type(tracer.failed))
    finally:
        for layer, mode in modes.items():
            layer.training = mode


def _of_one_input(net: nn.Module) -> nn.Module:
    """Return the same layers under a forward that takes nothing but images."""
    base: Any = type(net)

    def forward(self: nn.Module, images: Any) -> Any:
        return base.forward(self, images)

    one = copy(net)
    one.__class__ = type(base.__name__, (base,), {"forward": forward})
    return one
