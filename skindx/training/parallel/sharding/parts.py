"""The part of a weight that a rank holds, the whole weight, and the norm of all gradients."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import torch
from torch import Size, Tensor, nn

from skindx.training.parallel.sharding.communicator import Communicator, sizes_of

PARTS = "parts"
"""What a split layer calls its parts: names of its weights -> `Part`."""

Span = tuple[int, int]
"""From, and to without."""


@dataclass(frozen=True)
class Part:
    """A weight of which the ranks of an axis hold different rows or columns."""

    wires: Communicator
    shape: Size
    """Of the whole weight."""
    dim: int
    """The dimension that is split."""
    spans: tuple[tuple[Span, ...], ...]
    """Sizes of the ranks' parts along it."""
    replicated: bool = False
    """Along the mesh's axis `replicas` all hold the same, this and what is not split, and take the
    mean of all gradients."""
    peers: tuple[int, ...] = ()
    """Ranks that hold the same part and take the mean of its gradient alone, this one counted;
    what is not split has the mean of all ranks."""

    @classmethod
    def even(cls, wires: Communicator, shape: Size, peers: tuple[int, ...] = ()) -> Self:
        """Share out rows in order; the first ranks have one more where they must."""
        ends = list(accumulate(sizes_of(shape[0], wires.size)))
        spans = tuple((span,) for span in zip([0, *ends[:-1]], ends, strict=True))
        return cls(wires, shape, 0, spans, peers=peers)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many rows or columns each rank holds."""
        return tuple(sum(end - start for start, end in spans) for spans in self.spans)

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole weight, or of what an optimizer keeps of it."""
        found = [
            whole.narrow(self.dim, start, end - start) for start, end in self.spans[self.wires.rank]
        ]
        return torch.cat(found, self.dim)

    def whole(self, own: Tensor) -> Tensor:
        """Return the whole of this rank's part; every rank of the axis calls this."""
        row = self.shape.numel() // self.shape[self.dim]
        parts = self.wires.gather_parts(own, [size * row for size in self.sizes])
        whole = own.new_empty(self.shape)
        for part, size, spans in zip(parts, self.sizes, self.spans, strict=True):
            shape = [*self.shape]
            shape[self.dim] = size
            widths = [end - start for start, end in spans]
            pieces = torch.split(part.view(shape), widths, self.dim)
            for piece, (start, end) in zip(pieces, spans, strict=True):
                whole.narrow(self.dim, start, end - start).copy_(piece)
        return whole


@dataclass(frozen=True)
class Placed(Part):
    """A weight that one rank of an axis holds, and the others nothing of it."""

    owner: int = 0

    @classmethod
    def on(cls, owner: int, wires: Communicator, shape: Size, *, replicated: bool) -> Self:
        """Place a weight of one dimension or more on a rank."""
        all_rows = (0, shape[0])
        spans = tuple((all_rows if rank == owner else (0, 0),) for rank in range(wires.size))
        return cls(wires, shape, 0, spans, replicated, owner=owner)

    def whole(self, own: Tensor) -> Tensor:
        """Return the owner's weight; every rank of the axis calls this."""
        here = self.wires.rank == self.owner
        whole = own.detach().contiguous() if here else own.new_empty(self.shape)
        return self.wires.broadcast(whole, self.owner)


def take_part(layer: nn.Module, parts: dict[str, Part]) -> None:
    """Keep this rank's parts of a layer's weights in place of the whole ones."""
    for name, part in parts.items():
        weight = layer.get_parameter(name)
        setattr(layer, name, nn.Parameter(part.own(weight.detach()), weight.requires_grad))
    setattr(layer, PARTS, parts)


def parts_of(module: nn.Module) -> dict[str, Part]:
    """Return the parts of all split weights of a module by their names; none where none is."""
    return dict(_parts(module))


def _parts(module: nn.Module) -> Iterator[tuple[str, Part]]:
    for place, layer in module.named_modules():
        own: dict[str, Part] = getattr(layer, PARTS, {})
        for name, part in own.items():
            yield f"{place}.{name}" if place else name, part


class SplitGradients:
    """The gradients of split weights, each rank's its own, beside those that all hold alike."""

    def __init__(
        self,
        weights: Mapping[Communicator, Sequence[nn.Parameter]],
        others: Sequence[nn.Parameter],
    ) -> None:
        """Know the weights that are split, by what their ranks talk through, and all `others`."""
        self._weights, self._others = weights, others

    def square(self, *, known_bad: bool = False) -> float:
        """Return the squared norm of the split ones over all ranks, the same on each.

        NaN where one is not finite, or where a rank has `known_bad` ones.
        """
        total = 0.0
        for wires, weights in self._weights.items():
            own = _square(weights)
            total += float(wires.sum(own + math.nan if known_bad else own))
        return total

    def norm(self, *, known_bad: bool) -> float | None:
        """Return the norm of all gradients; None, on all ranks, where one is not finite.

        It is the same to the bit on all ranks, and so is what is clipped by it.
        """
        square = self.square(known_bad=known_bad)
        return math.sqrt(square + float(_square(self._others))) if math.isfinite(square) else None

    def scale(self, factor: float) -> None:
        """Multiply the split ones."""
        for weights in self._weights.values():
            torch._foreach_mul_(_gradients(weights), factor)


def _gradients(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _square(weights: Sequence[nn.Parameter]) -> Tensor:
    """Return the squared norm of what these weights have of gradients, as a tensor of one."""
    found = _gradients(weights)
    if not found:
        device = weights[0].device if weights else None
        return torch.zeros(1, dtype=torch.float64, device=device)
    return torch.stack(torch._foreach_norm(found)).double().square().sum().view(1)
