"""The wires between ranks: the few operations that exchanges are made of, and a count of bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Transfer:
    """One message of a round: `tensor` goes to, or is filled from, rank `peer`."""

    tensor: Tensor
    peer: int
    work: dist.Work | None = None
    """Under way already."""


class Fabric:
    """This rank's place among all ranks, and its own process groups to talk to them.

    Groups of our own, since the trainer uses the default one at the same time.
    """

    def __init__(
        self, device: torch.device, timeout: timedelta, ranks: Sequence[int] | None = None
    ) -> None:
        """Make the process groups; every rank calls this, at the same point.

        With `ranks` only these talk to each other, each of them calls this with the same ones, and
        from here on a rank's number is its place among them.
        """
        self._ranks = tuple(ranks) if ranks is not None else None
        here = dist.get_rank()
        self.rank = here if self._ranks is None else self._ranks.index(here)
        self.world = dist.get_world_size() if self._ranks is None else len(self._ranks)
        self.device = device
        self.timeout = timeout
        self.bytes_sent = 0
        self._all = self.subgroup(range(self.world))
        # Between two ranks gloo sends and receives in turn; with a group for each direction the
        # wire is used both ways at once. NCCL batches them by itself.
        self._two_way = dist.get_backend(self._all) == "gloo"
        self._up = self.subgroup(range(self.world)) if self._two_way else self._all
        self._down = self.subgroup(range(self.world)) if self._two_way else self._all

    def all_reduce(self, tensor: Tensor) -> dist.Work:
        """Begin to sum `tensor` over all ranks, in place."""
        self.bytes_sent += ring_bytes(tensor.nbytes, self.world)
        work = dist.all_reduce(tensor, group=self._all, async_op=True)
        assert work is not None
        return work

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's `tensor`, in rank order; all of one size."""
        gathered_PM = tensor.new_empty(self.world, *tensor.shape)
        gathered_PM[self.rank] = tensor
        for work in self.share(gathered_PM):
            work.wait()
        return list(gathered_PM.unbind())

    def share(self, rows_PM: Tensor) -> list[dist.Work]:
        """Begin to send row `rank` of the buffer to all others, and to fill in theirs."""
        own, others = rows_PM[self.rank], [rank for rank in range(self.world) if rank != self.rank]
        self.bytes_sent += len(others) * own.nbytes
        if not self._two_way:
            into = rows_PM.view(-1)
            work = dist.all_gather_into_tensor(into, own, group=self._all, async_op=True)
            return [work] if work else []
        # Not by gloo's gather: it copies each message by OpenMP threads of its own, which then
        # keep the cores from those of the training.
        expected = [self.expect(Transfer(rows_PM[peer], peer)).work for peer in others]
        sent = [dist.isend(own, self._of(peer), self._way(self.rank, peer)) for peer in others]
        return [work for work in (*expected, *sent) if work]

    def expect(self, receive: Transfer) -> Transfer:
        """Say early that a message is to come; `swap` then waits for it.

        Over gloo the sender gets it now, and need not ask when its turn has come: on a slow link
        the question would stand behind what is sent the other way.
        """
        if not self._two_way:
            return receive  # NCCL begins sends and receives of a round together
        group = self._way(receive.peer, self.rank)
        return replace(receive, work=dist.irecv(receive.tensor, self._of(receive.peer), group))

    def swap(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Send and receive some messages at once, and wait for all of them."""
        self.bytes_sent += sum(transfer.tensor.nbytes for transfer in sends)
        works: list[Any]
        if self._two_way:
            expected = [
                transfer if transfer.work else self.expect(transfer) for transfer in receives
            ]
            works = [transfer.work for transfer in expected]
            for transfer in sends:
                way = self._way(self.rank, transfer.peer)
                works.append(dist.isend(transfer.tensor, self._of(transfer.peer), way))
        else:
            operations = [
                dist.P2POp(dist.isend, transfer.tensor, self._of(transfer.peer), self._all)
                for transfer in sends
            ] + [
                dist.P2POp(dist.irecv, transfer.tensor, self._of(transfer.peer), self._all)
                for transfer in receives
            ]
            works = list(dist.batch_isend_irecv(operations)) if operations else []
        for work in works:
            work.wait()

    def _way(self, sender: int, receiver: int) -> dist.ProcessGroup:
        return self._up if sender < receiver else self._down

    def subgroup(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return a process group of some ranks; every rank calls this, at the same point."""
        # To ranks outside, torch gives a number instead, which they never use.
        made = dist.new_group(
            [self._of(rank) for rank in ranks],
            timeout=self.timeout,
            use_local_synchronization=self._ranks is not None,
        )
        return cast(dist.ProcessGroup, made)

    def _of(self, rank: int) -> int:
        """Return the number among all ranks of one among these."""
        return rank if self._ranks is None else self._ranks[rank]


def ring_bytes(size_bytes: int, ranks: int) -> int:
    """Return what each rank of a ring all-reduce sends: 2 (P - 1) / P of the buffer."""
    return round(2 * (ranks - 1) * size_bytes / ranks)
