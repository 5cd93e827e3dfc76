"""The part of a weight that a rank holds, the whole weight, and the norm of all gradients."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import torch
from torch import Size, Tensor, nn

from skindx.training.methods.sharding.communicator import Communicator
from skindx.training.parallel.mesh import sizes_of

PARTS = "parts"
"""What a split layer calls its parts: names of its weights -> `Part`."""

Span = tuple[int, int]
"""From, and to without."""


@dataclass(frozen=True)
class Part:
    """A weight of which the ranks of an axis hold different rows or columns."""

    links: Communicator
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
    def even(cls, links: Communicator, shape: Size, peers: tuple[int, ...] = ()) -> Self:
        """Share out rows in order; the first ranks have one more where they must."""
        ends = list(accumulate(sizes_of(shape[0], links.size)))
        spans = tuple((span,) for span in zip([0, *ends[:-1]], ends, strict=True))
        return cls(links, shape, 0, spans, peers=peers)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many rows or columns each rank holds."""
        return tuple(sum(end - start for start, end in spans) for spans in self.spans)

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole weight, or of what an optimizer keeps of it."""
        found = [
            whole.narrow(self.dim, start, end - start) for start, end in self.spans[self.links.rank]
        ]
        return torch.cat(found, self.dim)

    def whole(self, own: Tensor) -> Tensor:
        """Return the whole of this rank's part; every rank of the axis calls this."""
        row = self.shape.numel() // self.shape[self.dim]
        parts = self.links.gather_parts(own, [size * row for size in self.sizes])
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
    def on(cls, owner: int, links: Communicator, shape: Size, *, replicated: bool) -> Self:
        """Place a weight of one dimension or more on a rank."""
        all_rows = (0, shape[0])
        spans = tuple((all_rows if rank == owner else (0, 0),) for rank in range(links.size))
        return cls(links, shape, 0, spans, replicated, owner=owner)

    def whole(self, own: Tensor) -> Tensor:
        """Return the owner's weight; every rank of the axis calls this."""
        here = self.links.rank == self.owner
        whole = own.detach().contiguous() if here else own.new_empty(self.shape)
        return self.links.broadcast(whole, self.owner)


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
