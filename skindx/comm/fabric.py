"""Links between ranks, the operations that exchanges are made of, and the gradients' buffer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import accumulate
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Transfer:
    """One message of a round: `tensor` goes to, or is filled from, rank `peer`."""

    tensor: Tensor
    peer: int
    work: dist.Work | None = None
    """Handle of a transfer that has already started; None: not started."""


class Fabric:
    """This rank's place among all ranks, and its own process groups to talk to them.

    Groups of our own, since the trainer uses the default one at the same time.
    """

    def __init__(self, device: torch.device, timeout: timedelta) -> None:
        """Make the process groups; every rank calls this, at the same point."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
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
        """Begin to send row `rank` of the buffer to all peers, and to fill in theirs."""
        local = rows_PM[self.rank]
        if self._two_way:
            return self._post([local] * self.world, rows_PM)
        self.bytes_sent += (self.world - 1) * local.nbytes
        into = rows_PM.view(-1)
        work = dist.all_gather_into_tensor(into, local, group=self._all, async_op=True)
        return [work] if work else []

    def deal(self, rows_PM: Tensor, into_PM: Tensor) -> list[dist.Work]:
        """Begin to send row p to rank p, and to fill row p of `into_PM` with what it sends."""
        if self._two_way:
            return self._post(list(rows_PM), into_PM)
        self.bytes_sent += (self.world - 1) * rows_PM[0].nbytes
        work = dist.all_to_all_single(into_PM, rows_PM, group=self._all, async_op=True)
        return [work] if work else []

    def _post(self, rows: Sequence[Tensor], into_PM: Tensor) -> list[dist.Work]:
        # Not by gloo's gather: it copies each message by OpenMP threads of its own, which then
        # keep the cores from those of the training.
        peers = [rank for rank in range(self.world) if rank != self.rank]
        self.bytes_sent += sum(rows[peer].nbytes for peer in peers)
        expected = [self.expect(Transfer(into_PM[peer], peer)).work for peer in peers]
        sent = [dist.isend(rows[peer], peer, self._way(self.rank, peer)) for peer in peers]
        return [work for work in (*expected, *sent) if work]

    def expect(self, receive: Transfer) -> Transfer:
        """Say early that a message is to come; `swap` then waits for it.

        Over gloo the sender gets it now, and need not ask when its turn has come: on a slow link
        the question would stand behind what is sent the other way.
        """
        if not self._two_way:
            return receive  # NCCL begins sends and receives of a round together
        group = self._way(receive.peer, self.rank)
        return replace(receive, work=dist.irecv(receive.tensor, receive.peer, group))

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
                works.append(dist.isend(transfer.tensor, transfer.peer, way))
        else:
            operations = [
                dist.P2POp(dist.isend, transfer.tensor, transfer.peer, self._all)
                for transfer in sends
            ] + [
                dist.P2POp(dist.irecv, transfer.tensor, transfer.peer, self._all)
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
        return cast(dist.ProcessGroup, dist.new_group(list(ranks), timeout=self.timeout))


def ring_bytes(size_bytes: int, ranks: int) -> int:
    """Return what each rank of a ring all-reduce sends: 2 (P - 1) / P of the buffer."""
    return round(2 * (ranks - 1) * size_bytes / ranks)


class GradientBuffer:
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
        # Same memory layout as the parameter (channels last): the optimizer reads both in step.
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


def flat_and_back(gradients: GradientBuffer) -> None:
    """Do as the engine does by itself: one buffer, divided, and copied back."""
    flat_M = torch.cat([view.reshape(-1) for view in gradients.views])
    flat_M.div_(1.0)
    parts = torch.split(flat_M, [view.numel() for view in gradients.views])
    for view, part in zip(gradients.views, parts, strict=True):
        view.copy_(part.view_as(view))
