"""Which part of a weight a rank holds, and how the whole comes together again."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Size, Tensor, nn

from skindx.training.parallel.sharding.communicator import Communicator

PARTS = "parts"
"""What a split layer calls its parts: names of its weights -> `Part`."""


@dataclass(frozen=True)
class Part:
    """A weight whose first dimension is split over the ranks of an axis."""

    wires: Communicator
    shape: Size
    """Of the whole weight."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each rank; they differ by one at most."""
        return sizes_of(self.shape[0], self.wires.size)

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole weight, or of what an optimizer keeps of it."""
        ends = list(accumulate(self.sizes))
        end, size = ends[self.wires.rank], self.sizes[self.wires.rank]
        return whole[end - size : end]

    def whole(self, own: Tensor) -> Tensor:
        """Return the whole of this rank's part; every rank of the axis calls this."""
        row = self.shape[1:].numel()
        parts = self.wires.gather_parts(own, [size * row for size in self.sizes])
        return torch.cat(parts).view(self.shape)


def sizes_of(count: int, ranks: int) -> tuple[int, ...]:
    """Share out `count` rows, the first ranks one more where it does not divide."""
    return tuple(count // ranks + (rank < count % ranks) for rank in range(ranks))


def parts_of(module: nn.Module) -> dict[str, Part]:
    """Return the parts of all split weights of a module by their names; none where none is."""
    return dict(_parts(module))


def _parts(module: nn.Module) -> Iterator[tuple[str, Part]]:
    for place, layer in module.named_modules():
        own: dict[str, Part] = getattr(layer, PARTS, {})
        for name, part in own.items():
            yield f"{place}.{name}" if place else name, part
