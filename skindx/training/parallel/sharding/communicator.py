"""The collectives that split layers are made of, along one axis of the mesh."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.training.parallel.mesh import ProcessGroup

# b = rows (images) of this rank, B = those of all ranks, c = columns of this rank, C = all columns

Sizes = tuple[int, ...]
"""Rows or columns of each rank, in rank order."""


class Communicator:
    """Moves rows and columns between the ranks of an axis, and counts the bytes that it sends.

    Ranks may have different numbers of rows. Every rank calls all of it in the same order.
    """

    def __init__(self, axis: ProcessGroup) -> None:
        """Talk to the ranks of `axis`."""
        self.rank, self.size, self._group = axis.rank, axis.size, axis.group
        self.bytes_sent = 0
        """By split layers since the start: what checkpoints and evaluation gather is not in it."""
        self.rows: Sizes = ()

    def __deepcopy__(self, memo: object) -> Self:
        """A copied network talks over the same wires."""
        return self

    def agree_on_rows(self, own: int, device: torch.device) -> None:
        """Learn how many rows each rank has in the next forward pass."""
        rows_P = torch.empty(self.size, dtype=torch.int64, device=device)
        dist.all_gather_into_tensor(rows_P, torch.tensor([own], device=device), group=self._group)
        self.rows = tuple(rows_P.tolist())

    def gather_rows(self, x_b: Tensor, rows: Sizes) -> Tensor:
        """Return the rows of all ranks, B x …, in rank order (all-gather)."""
        self.bytes_sent += (self.size - 1) * x_b.nbytes
        return self._gathered(x_b, rows)

    def _gathered(self, x_b: Tensor, rows: Sizes) -> Tensor:
        most = max(rows)
        padded = x_b.contiguous()
        if len(x_b) < most:
            padded = torch.cat([padded, x_b.new_zeros(most - len(x_b), *x_b.shape[1:])])
        all_B = x_b.new_empty(most * self.size, *x_b.shape[1:])
        dist.all_gather_into_tensor(all_B, padded, group=self._group)
        if min(rows) == most:
            return all_B
        return torch.cat(
            [part[:own] for part, own in zip(torch.split(all_B, most), rows, strict=True)]
        )

    def sum_rows(self, y_B: Tensor, rows: Sizes) -> Tensor:
        """Return this rank's rows of the sum over all ranks (reduce-scatter), b x …."""
        own = rows[self.rank]
        received = self._swapped(
            y_B.contiguous(), [count * y_B[0].numel() for count in rows], y_B[0].numel() * own
        )
        parts_Pb = received.view(self.size, own, *y_B.shape[1:])
        return parts_Pb.sum(0, dtype=torch.float32).to(y_B.dtype)

    def to_rows(self, y_Bc: Tensor, rows: Sizes, columns: Sizes) -> Tensor:
        """Return all columns of this rank's rows, b x C x …, for its columns of all rows."""
        own, rest = rows[self.rank], y_Bc.shape[2:]
        width = rest.numel()
        sent = [count * y_Bc.shape[1] * width for count in rows]
        received = self._exchanged(
            y_Bc.contiguous(), sent, [own * count * width for count in columns]
        )
        return torch.cat(
            [part.view(own, count, *rest) for part, count in zip(received, columns, strict=True)],
            1,
        )

    def to_columns(self, y_bC: Tensor, rows: Sizes, columns: Sizes) -> Tensor:
        """Undo `to_rows`: return this rank's columns of all rows, B x c x …."""
        rest = y_bC.shape[2:]
        width, own = rest.numel(), columns[self.rank]
        flat = torch.cat([part.reshape(-1) for part in torch.split(y_bC, list(columns), 1)])
        sent = [len(y_bC) * count * width for count in columns]
        received = self._exchanged(flat, sent, [count * own * width for count in rows])
        return torch.cat(received).view(sum(rows), own, *rest)

    def _swapped(self, tensor: Tensor, sent: list[int], received: int) -> Tensor:
        return torch.cat(self._exchanged(tensor, sent, [received] * self.size))

    def _exchanged(self, tensor: Tensor, sent: list[int], received: list[int]) -> list[Tensor]:
        """Send each rank its part of a tensor; return what each has sent (all-to-all)."""
        self.bytes_sent += tensor.nbytes - sent[self.rank] * tensor.element_size()
        found = tensor.new_empty(sum(received))
        dist.all_to_all_single(found, tensor.view(-1), received, sent, group=self._group)
        return list(torch.split(found, received))

    def sum_all(self, own: Tensor) -> Tensor:
        """Return the sum over all ranks, the same on each, as a new tensor (all-reduce)."""
        self.bytes_sent += 2 * (self.size - 1) * own.nbytes // self.size
        total = own.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self._group)
        return total

    def draw_alike(self, device: torch.device) -> None:
        """Take over the first rank's random numbers: what all ranks compute alike is alike."""
        state = torch.get_rng_state().to(device)
        dist.broadcast(state, group=self._group, group_src=0)
        torch.set_rng_state(state.cpu())
        if device.type == "cuda":
            state = torch.cuda.get_rng_state(device).to(device)
            dist.broadcast(state, group=self._group, group_src=0)
            torch.cuda.set_rng_state(state.cpu(), device)

    def gather_parts(self, own: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Return every rank's flat part of a tensor, of so many elements each; not counted."""
        flat = self._gathered(own.detach().reshape(-1), tuple(sizes))
        ends = list(accumulate(sizes))
        return [flat[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of some numbers over all ranks, in place."""
        dist.all_reduce(values, group=self._group)
        return values
