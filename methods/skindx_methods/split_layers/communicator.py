"""The collectives that split layers are made of, along one axis of the mesh."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.training.parallel.mesh import ProcessGroup, Watch

# b = rows (images) of this rank, B = those of all ranks, c = columns of this rank, C = all columns

Sizes = tuple[int, ...]
"""Rows or columns of each rank, in rank order."""

Coming = Callable[[], Tensor]
"""Waits for what is on its way."""


class Communicator:
    """Moves rows and columns between the ranks of an axis, and counts the bytes that it sends.

    Ranks may have different numbers of rows. Every rank calls all of it in the same order.
    """

    def __init__(self, axis: ProcessGroup) -> None:
        """Talk to the ranks of `axis`."""
        self.rank, self.size, self.group = axis.rank, axis.size, axis.group
        self.bytes_sent = 0
        """Bytes that split layers sent since the start, without checkpoints and evaluation."""
        self.rows: Sizes = ()
        self.watch: Watch | None = None

    def __deepcopy__(self, memo: object) -> Self:
        """A copied network talks over the same links."""
        return self

    def agree_on_rows(self, count: int, device: torch.device) -> None:
        """Learn how many rows each rank has in the next forward pass."""
        rows_P = torch.empty(self.size, dtype=torch.int64, device=device)
        dist.all_gather_into_tensor(rows_P, torch.tensor([count], device=device), group=self.group)
        self.rows = tuple(rows_P.tolist())

    def gather_rows(self, x_b: Tensor, rows: Sizes) -> Tensor:
        """Return the rows of all ranks, B x …, in rank order (all-gather)."""
        return self.start_gather(x_b, rows)()

    def start_gather(self, x_b: Tensor, rows: Sizes) -> Coming:
        """Begin to gather the rows of all ranks; where one rank has them all, it sends them."""
        self.bytes_sent += (self.size - 1) * x_b.nbytes
        if sum(count > 0 for count in rows) > 1:
            return self._start_gathered(x_b, rows)
        owner = rows.index(max(rows))
        all_B = x_b.new_empty(max(rows), *x_b.shape[1:])
        if owner == self.rank:
            all_B = x_b.contiguous()
        work = dist.broadcast(all_B, group=self.group, group_src=owner, async_op=True)
        return self._when_done("gather", work, lambda: all_B)

    def _gathered(self, x_b: Tensor, rows: Sizes) -> Tensor:
        return self._start_gathered(x_b, rows)()

    def _start_gathered(self, x_b: Tensor, rows: Sizes) -> Coming:
        most = max(rows)
        padded = x_b.contiguous()
        if len(x_b) < most:
            padded = torch.cat([padded, x_b.new_zeros(most - len(x_b), *x_b.shape[1:])])
        all_B = x_b.new_empty(most * self.size, *x_b.shape[1:])
        work = dist.all_gather_into_tensor(all_B, padded, group=self.group, async_op=True)

        def joined() -> Tensor:
            if min(rows) == most:
                return all_B
            parts = zip(torch.split(all_B, most), rows, strict=True)
            return torch.cat([part[:count] for part, count in parts])

        return self._when_done("gather", work, joined, padded)

    def sum_rows(self, y_B: Tensor, rows: Sizes) -> Tensor:
        """Return this rank's rows of the sum over all ranks (reduce-scatter), b x …."""
        return self.start_sum_rows(y_B, rows)()

    def start_sum_rows(self, y_B: Tensor, rows: Sizes) -> Coming:
        """Begin to sum the rows of all ranks."""
        local_rows, shape = rows[self.rank], y_B.shape[1:]
        width = shape.numel()
        sent, received = [count * width for count in rows], [width * local_rows] * self.size

        def joined(parts: Sequence[Tensor]) -> Tensor:
            parts_Pb = torch.cat(list(parts)).view(self.size, local_rows, *shape)
            return parts_Pb.sum(0, dtype=torch.float32).to(y_B.dtype)

        return self._start_exchange(y_B.contiguous(), sent, received, joined)

    def to_rows(self, y_Bc: Tensor, rows: Sizes, columns: Sizes) -> Tensor:
        """Return all columns of this rank's rows, b x C x …, for its columns of all rows."""
        return self.start_to_rows(y_Bc, rows, columns)()

    def start_to_rows(self, y_Bc: Tensor, rows: Sizes, columns: Sizes) -> Coming:
        """Begin `to_rows`."""
        local_rows, rest = rows[self.rank], y_Bc.shape[2:]
        width = rest.numel()
        sent = [count * y_Bc.shape[1] * width for count in rows]
        received = [local_rows * count * width for count in columns]

        def joined(parts: Sequence[Tensor]) -> Tensor:
            wide = zip(parts, columns, strict=True)
            return torch.cat([part.view(local_rows, count, *rest) for part, count in wide], 1)

        return self._start_exchange(y_Bc.contiguous(), sent, received, joined)

    def to_columns(self, y_bC: Tensor, rows: Sizes, columns: Sizes) -> Tensor:
        """Undo `to_rows`: return this rank's columns of all rows, B x c x …."""
        return self.start_to_columns(y_bC, rows, columns)()

    def start_to_columns(self, y_bC: Tensor, rows: Sizes, columns: Sizes) -> Coming:
        """Begin `to_columns`."""
        rest = y_bC.shape[2:]
        width, local_columns = rest.numel(), columns[self.rank]
        flat = torch.cat([part.reshape(-1) for part in torch.split(y_bC, list(columns), 1)])
        sent = [len(y_bC) * count * width for count in columns]
        received = [count * local_columns * width for count in rows]

        def joined(parts: Sequence[Tensor]) -> Tensor:
            return torch.cat(list(parts)).view(sum(rows), local_columns, *rest)

        return self._start_exchange(flat, sent, received, joined)

    def _start_exchange(
        self,
        tensor: Tensor,
        sent: list[int],
        received: list[int],
        joined: Callable[[Sequence[Tensor]], Tensor],
    ) -> Coming:
        """Begin to send each rank its part of a tensor (all-to-all); what comes is put together."""
        self.bytes_sent += tensor.nbytes - sent[self.rank] * tensor.element_size()
        into = tensor.new_empty(sum(received))
        work = dist.all_to_all_single(
            into, tensor.view(-1), received, sent, group=self.group, async_op=True
        )
        return self._when_done("regroup", work, lambda: joined(torch.split(into, received)), tensor)

    def _when_done(
        self, name: str, work: dist.Work | None, joined: Callable[[], Tensor], *sent: Tensor
    ) -> Coming:
        """Return what waits; a tensor that is sent lives until then."""
        assert work is not None

        def wait(_held: tuple[Tensor, ...] = sent) -> Tensor:
            with self._watched(name):
                work.wait()
            return joined()

        return wait

    def _watched(self, name: str) -> AbstractContextManager[None]:
        return self.watch(name) if self.watch else nullcontext()

    def gather_parts(self, part: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return every rank's flat part of a tensor, of so many elements each; not counted."""
        flat = self._gathered(part.detach().reshape(-1), tuple(sizes))
        ends = list(accumulate(sizes))
        return [flat[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of some numbers over all ranks, in place."""
        dist.all_reduce(values, group=self.group)
        return values
