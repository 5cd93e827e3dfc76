"""Watches forward and backward passes, and adds up what this rank's images bring to the factors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from skindx.core.startup import light_imports
from skindx.training.methods.kfac.layers import Layer, Sums

with light_imports():
    from timm.layers import BatchNormAct2d

Draw = Callable[[Tensor, torch.Generator], Tensor]
"""Outputs of the network -> the summed loss of labels drawn from them."""


class Collector:
    """Hooks on the layers of a module, from a call of `open` to the end of its forward pass.

    With `draw` the gradients at the layers' outputs are those of drawn labels (Fisher), in a
    backward pass of its own that reaches no weight; without it those of the loss (empirical).
    """

    def __init__(self, module: nn.Module, layers: list[Layer], draw: Draw | None) -> None:
        """Put a hook on `module`, for its outputs, which `draw` gets."""
        self._draw, self._layers = draw, layers
        self._open, self._scale = False, 1.0
        self._output: Tensor | None = None
        self._waiting: list[tuple[Layer, Callable[[Tensor], Sums], GradientEdge]] = []
        self.sums: dict[str, Sums] = {}
        """Statistics of the step so far, by layer."""
        self.images = 0
        """How many images brought it."""
        self._handles: list[RemovableHandle] = []
        # Registered now, to run before the hooks of an engine that wraps the module later.
        self._done = module.register_forward_hook(self._forward_done)

    def open(self, images: int) -> None:
        """A forward pass of so many images begins, which is to be collected."""
        self._open, self._now = True, images
        self.images += images
        self._unwatch()
        self._handles = [handle for layer in self._layers for handle in self._watch(layer)]

    def backward(self, scale: float, generator: torch.Generator) -> None:
        """Begin the backward pass of a loss that is `scale` times the sum over the images."""
        self._scale = scale
        if self._draw is None or self._output is None:
            return
        waiting, self._waiting = self._waiting, []
        loss, self._output = self._draw(self._output, generator), None
        edges = [edge for _, _, edge in waiting]
        gradients = torch.autograd.grad(loss, edges, retain_graph=True, allow_unused=True)
        for (layer, rest, _), gradient in zip(waiting, gradients, strict=True):
            if gradient is not None:
                self._add(layer.name, _exactly(rest, gradient))

    def take(self) -> tuple[dict[str, Sums], int]:
        """Return sums and number of images of the step, and begin again."""
        taken = self.sums, self.images
        self.discard()
        return taken

    def discard(self) -> None:
        """Drop what the step has brought."""
        self._open, self._output = False, None
        self._unwatch()
        self.sums, self.images, self._waiting = {}, 0, []

    def close(self) -> None:
        """Remove the hooks."""
        self._unwatch()
        self._done.remove()

    def _unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch(self, layer: Layer) -> list[RemovableHandle]:
        module = layer.module
        if not isinstance(module, BatchNormAct2d):
            return [
                module.register_forward_hook(
                    lambda _, inputs, output: self._seen(layer, inputs[0], output),
                    prepend=True,  # the module may be the whole network, whose end comes last
                )
            ]
        # What this module returns is behind its activation; what its `drop` gets is not.
        given: list[Tensor] = []

        def begin(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            given[:] = inputs[:1] if self._open else []

        def normalised(_: nn.Module, outputs: tuple[Tensor, ...]) -> None:
            if given:
                self._seen(layer, given.pop(), outputs[0])

        return [
            module.register_forward_pre_hook(begin),
            module.drop.register_forward_pre_hook(normalised),
        ]

    def _seen(self, layer: Layer, inputs: Tensor, output: Tensor) -> None:
        if not self._open or not output.requires_grad:
            return
        with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
            sums, rest = layer.observe(inputs, output, self._now)
        self._add(layer.name, sums)
        if self._draw:
            # Taken now, since an activation may overwrite the tensor.
            self._waiting.append((layer, rest, get_gradient_edge(output)))
        else:
            output.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._add(layer.name, _exactly(rest, gradient / self._scale))
            )

    def _add(self, name: str, sums: Sums) -> None:
        layer_sums = self.sums.setdefault(name, {})
        for factor, added in sums.items():
            layer_sums[factor] = layer_sums[factor] + added if factor in layer_sums else added

    def _forward_done(self, _: nn.Module, inputs: Any, output: Any) -> Any:
        if not self._open:
            return None
        self._open = False
        self._unwatch()
        if self._draw is None:
            return None
        # The engine's own hooks then stand on the view, and our backward pass does not meet them.
        self._output = output
        return output.view_as(output)


def _exactly(rest: Callable[[Tensor], Sums], gradient: Tensor) -> Sums:
    with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
        return rest(gradient)
