"""The inputs and output gradients of a linear layer, as one step's backward passes meet them."""

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class Factors:
    """Collects both factors of a layer's weight gradient: G^T X, with a row an image or token.

    Where `alone` is set, autograd leaves the weight's gradient out: it would be computed for this
    rank's rows and thrown away.
    """

    def __init__(self, name: str, layer: nn.Linear, ready: Callable[[nn.Parameter], None]) -> None:
        """Watch `layer`; `ready` is called when all its outputs of a pass have their gradients."""
        self.name, self.weight = name, cast(nn.Parameter, layer.weight)
        self.alone = False
        self._ready = ready
        self._inputs: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._awaited = 0
        self._handles: list[RemovableHandle] = [
            layer.register_forward_pre_hook(self._enter),
            layer.register_forward_hook(self._leave, always_call=True),
        ]

    def __deepcopy__(self, memo: object) -> Self:
        """Return what watches nothing: a copy of the module is no part of the training."""
        copy = object.__new__(type(self))
        copy._handles, copy.alone = [], False
        return copy

    @property
    def inside(self) -> int:
        """Input features."""
        return self.weight.shape[1]

    @property
    def outside(self) -> int:
        """Output features."""
        return self.weight.shape[0]

    @property
    def rows(self) -> int:
        """How many were collected since `clear`."""
        return sum(map(len, self._gradients))

    @property
    def dtype(self) -> torch.dtype | None:
        """What holds every collected output gradient; None: there is none."""
        found: torch.dtype | None = None
        for gradient in self._gradients:
            found = torch.promote_types(found, gradient.dtype) if found else gradient.dtype
        return found

    def clear(self) -> None:
        """Forget what was collected."""
        self._inputs.clear()
        self._gradients.clear()

    def settle(self) -> None:
        """Await nothing any more: the step is over."""
        self._awaited = 0

    def write(self, gradients_RO: Tensor, inputs_RI: Tensor) -> None:
        """Fill in the collected rows, and zeros after them."""
        for target, pieces in ((gradients_RO, self._gradients), (inputs_RI, self._inputs)):
            begin = 0
            for piece in pieces:
                target[begin : begin + len(piece)] = piece
                begin += len(piece)
            target[begin:] = 0

    def product(self) -> Tensor:
        """Return the gradient of this rank's rows, `outside` x `inside` in fp32."""
        shape = (self.rows, self.outside), (self.rows, self.inside)
        gradients_RO, inputs_RI = (self.weight.new_empty(size) for size in shape)
        self.write(gradients_RO, inputs_RI)
        return gradients_RO.t() @ inputs_RI

    def close(self) -> None:
        """Remove the hooks from the layer."""
        for handle in self._handles:
            handle.remove()
        self.clear()

    def _enter(self, layer: nn.Module, inputs: Any) -> None:
        # Autograd notes in the forward pass whose gradients it will be asked for.
        if self.alone and torch.is_grad_enabled():
            self.weight.requires_grad_(False)

    def _leave(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if self.alone:
            self.weight.requires_grad_(True)
        if not self._handles or not isinstance(output, Tensor) or not output.requires_grad:
            return  # a copy of the layer, one that failed, or one without gradients
        met, self._awaited = inputs[0].detach(), self._awaited + 1
        output.register_hook(lambda gradient: self._meet(met, gradient))  # type: ignore[no-untyped-call]

    def _meet(self, inputs: Tensor, gradient: Tensor) -> None:
        # Mixed precision multiplies in the type of the output, with inputs cast to it.
        self._inputs.append(inputs.reshape(-1, self.inside).to(gradient.dtype))
        self._gradients.append(gradient.detach().reshape(-1, self.outside))
        self._awaited -= 1
        if self.alone and self._awaited == 0:
            self._ready(self.weight)
