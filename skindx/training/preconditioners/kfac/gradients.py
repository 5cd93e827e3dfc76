"""The gradients of layers as matrices in one buffer, read and written by one call each.

Most layers have few numbers, so that a call for each would take longer than the numbers.
"""

# S = blocks of a layer, G = outputs, A = inputs

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from skindx.training.preconditioners.kfac.layers import INSIDE, OUTSIDE, Layer


class Gradients:
    """Single precision matrices of some layers, for their gradients or their natural ones.

    Where a layer has a bias, its gradient is the last column.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        """Make the buffer, of zeros."""
        self._layers = layers
        shapes = [_shape(layer) for layer in layers]
        sizes = [blocks * outputs * inputs for blocks, outputs, inputs in shapes]
        device = layers[0].weight.device if layers else None
        self.flat = torch.zeros(sum(sizes), device=device)
        """All numbers, in the layers' order."""
        self.matrices: dict[str, Tensor] = {
            layer.name: part.view(shape)
            for layer, part, shape in zip(
                layers, torch.split(self.flat, sizes), shapes, strict=True
            )
        }
        """Of each layer a view_SGA of the buffer."""

    def read(self) -> None:
        """Take the gradients of the layers' weights and biases."""
        views, own = self._pairs()
        torch._foreach_copy_(views, own)

    def write(self) -> None:
        """Replace the gradients of the layers' weights and biases."""
        views, own = self._pairs()
        torch._foreach_copy_(own, views)

    def put(self, matrices: Mapping[str, Tensor]) -> None:
        """Take the matrices_SGA of some of the layers."""
        if matrices:
            views = [self.matrices[name] for name in matrices]
            torch._foreach_copy_(views, list(matrices.values()))

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return views in the shape of the gradients that there are, and these."""
        found = [(view, weight.grad) for weight, view in self._views if weight.grad is not None]
        return [view for view, _ in found], [own for _, own in found]

    @cached_property
    def _views(self) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases, and views of the buffer in their shape."""
        views = []
        for layer in self._layers:
            weight, bias = layer.parts()
            rows = self.matrices[layer.name].flatten(0, 1)
            if bias is not None:
                views.append((bias, rows[:, -1]))
                rows = rows[:, :-1]
            views.append((weight, rows.view(weight.shape)))
        return views


def _shape(layer: Layer) -> tuple[int, int, int]:
    blocks, inputs = layer.shapes[INSIDE]
    return blocks, layer.shapes.get(OUTSIDE, (blocks, 1))[1], inputs
