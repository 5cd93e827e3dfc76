"""The part of a weight that a rank of a cube holds: some rows of some columns."""

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Size, Tensor

from skindx.training.parallel.sharding.communicator import Communicator
from skindx.training.parallel.sharding.cube import place_of
from skindx.training.parallel.sharding.part import Part


def padded(rows: int, q: int) -> int:
    """Return the next number that q x q blocks divide."""
    return -(-rows // q**2) * q**2


@dataclass(frozen=True)
class CubePart(Part):
    """Rows (j, i) and columns l of K x N; with j and l swapped for the second of two products.

    Rows beyond the last are zeros, which no gradient reaches.
    """

    q: int = 2
    swapped: bool = False
    order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """All rows, those of a block of columns of the product after the other."""

    @classmethod
    def of(
        cls,
        wires: Communicator,
        shape: Size,
        q: int,
        times: int,
        peers: tuple[int, ...],
        *,
        swapped: bool,
    ) -> Self:
        """Share out a weight whose outputs are `times` blocks that all go by heads."""
        rows = padded(shape[0], q) // times
        assert times == 1 or rows * times == shape[0]
        starts = torch.arange(times)[:, None] * rows
        own = [(starts + block_k).flatten() for block_k in torch.arange(rows).chunk(q)]
        return cls(wires, shape, 0, (), peers=peers, q=q, swapped=swapped, order=torch.cat(own))

    def _block(self, rank: int) -> tuple[Tensor, slice, Tensor]:
        """Return a rank's rows, its columns, and which of the rows are there."""
        i, j, l = place_of(rank, self.q)  # noqa: E741 (the paper's name)
        if self.swapped:
            j, l = l, j  # noqa: E741
        height, width = len(self.order) // self.q**2, self.shape[1] // self.q
        block = j * self.q + i
        rows_k = self.order[block * height : (block + 1) * height]
        return rows_k, slice(l * width, (l + 1) * width), rows_k < self.shape[0]

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole weight, or of what an optimizer keeps of it."""
        rows_k, columns, there_k = self._block(self.wires.rank)
        part = whole.new_zeros(len(rows_k), columns.stop - columns.start)
        part[there_k] = whole[rows_k[there_k].to(whole.device), columns]
        return part

    def whole(self, own: Tensor) -> Tensor:
        """Return the whole of this rank's part; every rank of the cube calls this."""
        parts = self.wires.gather_parts(own, [own.numel()] * self.wires.size)
        whole = own.new_empty(self.shape)
        for rank, part in enumerate(parts):
            rows_k, columns, there_k = self._block(rank)
            whole[rows_k[there_k].to(whole.device), columns] = part.view(own.shape)[there_k]
        return whole
