"""All gradients of a module in one flat buffer, in the order in which backward makes them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn


class Gradients:
    """The flat buffer (fp32) and each parameter's place in it.

    Backward meets parameters in about the reverse of the order in which they were made, so that
    is the layout, until `reorder` knows better: a run of tensors that are ready together is then
    one piece of memory.
    """

    def __init__(self, named_parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        trained = [
            (name, parameter) for name, parameter in named_parameters if parameter.requires_grad
        ]
        parameters = dict(reversed(trained))
        device = named_parameters[0][1].device if named_parameters else None
        self._parameters = parameters
        self.flat = torch.zeros(
            sum(parameter.numel() for parameter in parameters.values()), device=device
        )
        self._lay_out(list(parameters))

    def _lay_out(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.parameters = [self._parameters[name] for name in self.names]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.offsets = [0, *accumulate(self.sizes)]
        self._view()

    def _view(self) -> None:
        # As the parameter lies in memory (channels last): the optimizer walks both side by side.
        self.views = [
            self.flat[start : start + size].as_strided(parameter.size(), parameter.stride(), start)
            for parameter, start, size in zip(
                self.parameters, self.offsets[:-1], self.sizes, strict=True
            )
        ]

    def reorder(self, names: Sequence[str]) -> None:
        """Lay the buffer out in another order, between two steps; the same on every rank."""
        assert sorted(names) == sorted(self.names)
        self._lay_out(names)

    def detach(self) -> None:
        """Let autograd bring its own tensors: no `grad` is a place in the buffer any more."""
        for parameter in self.parameters:
            parameter.grad = None

    def attach(self) -> None:
        """Let autograd add into the buffer: each `grad` becomes its place in it."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view

    def replace(self, flat: Tensor) -> Tensor:
        """Take another buffer of the same size in place of this one, which is returned."""
        assert flat.shape == self.flat.shape
        assert flat.dtype == self.flat.dtype
        before, self.flat = self.flat, flat
        self._view()
        self.attach()
        return before

    def span(self, first: int, last: int) -> Tensor:
        """Return the piece of the buffer that holds tensors `first` up to, without, `last`."""
        return self.flat[self.offsets[first] : self.offsets[last]]
