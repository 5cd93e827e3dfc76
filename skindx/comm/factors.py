"""The inputs and output gradients of a linear layer, as one step's backward passes meet them."""

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class Factors:
    """Counts the rows of a layer's weight gradient G^T X, an image or a token each.

    Where `sending` is set, both factors are collected, and autograd leaves the weight's gradient
    out: it would be computed for this rank's rows and thrown away.
    """

    def __init__(self, name: str, layer: nn.Linear, ready: Callable[[nn.Parameter], None]) -> None:
        """Watch `layer`; `ready` is called when all its outputs of a pass have their gradients."""
        self.name, self.weight = name, cast(nn.Parameter, layer.weight)
        self.sending = False
        self.rows = 0
        """Since `clear`."""
        self.dtype: torch.dtype | None = None
        """Of what holds every output gradient since then; None: there was none."""
        self._ready = ready
        self._inputs: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._pending = 0
        self._handles: list[RemovableHandle] = [
            layer.register_forward_pre_hook(self._enter),
            layer.register_forward_hook(self._leave, always_call=True),
        ]

    def __deepcopy__(self, memo: object) -> Self:
        """Return what watches nothing: a copy of the module is no part of the training."""
        copy = object.__new__(type(self))
        copy._handles, copy.sending = [], False
        return copy

    @property
    def inside(self) -> int:
        """Input features."""
        return self.weight.shape[1]

    @property
    def outside(self) -> int:
        """Output features."""
        return self.weight.shape[0]

    def clear(self) -> None:
        """Forget what was counted and collected."""
        self.rows, self.dtype = 0, None
        self._inputs.clear()
        self._gradients.clear()

    def end_step(self) -> None:
        """Let go of everything: the step is over."""
        self._pending = 0
        self.clear()

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
        if self.sending and torch.is_grad_enabled():
            self.weight.requires_grad_(False)

    def _leave(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if self.sending:
            self.weight.requires_grad_(True)
        if not self._handles or not isinstance(output, Tensor) or not output.requires_grad:
            return  # a copy of the layer, one that failed, or one without gradients
        self._pending += 1
        kept = inputs[0].detach() if self.sending else None  # the graph would keep it to its end
        output.register_hook(lambda gradient: self._collect(kept, gradient))  # type: ignore[no-untyped-call]

    def _collect(self, inputs: Tensor | None, gradient: Tensor) -> None:
        kind, self._pending = gradient.dtype, self._pending - 1
        self.rows += gradient.numel() // self.outside
        self.dtype = torch.promote_types(self.dtype, kind) if self.dtype else kind
        if inputs is None:
            return
        # Mixed precision multiplies in the type of the output, with inputs cast to it.
        self._inputs.append(inputs.reshape(-1, self.inside).to(kind))
        self._gradients.append(gradient.detach().reshape(-1, self.outside))
        if self._pending == 0:
            self._ready(self.weight)
