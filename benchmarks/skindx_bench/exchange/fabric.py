"""The wires of an exchange, which can be left out: what remains is its local work."""

from collections.abc import Sequence
from typing import Literal

import torch.distributed as dist
from torch import Tensor

from skindx.comm.fabric import Fabric, Transfer


class ReplayFabric(Fabric):
    """Records what comes over the wires in one exchange, and hands it out again at once.

    A sum is not recorded: in a replay it leaves this rank's own values, which are as good for the
    work that follows.
    """

    mode: Literal["live", "record", "replay"] = "live"

    def start(self, mode: Literal["record", "replay"], tape: list[Tensor]) -> None:
        """Record the next exchange on `tape`, or replay it from there; until `stop`."""
        self.mode, self._tape, self._next = mode, tape, 0

    def stop(self) -> None:
        """Use the wires."""
        self.mode = "live"

    def all_reduce(self, tensor: Tensor) -> dist.Work:
        """Begin to sum `tensor` over all ranks, in place."""
        return _Done() if self.mode == "replay" else super().all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's `tensor`, in rank order; all of one size."""
        if self.mode == "replay":
            return [self._played() for _ in range(self.world)]
        gathered = super().all_gather(tensor)
        self._record(gathered)
        return gathered

    def expect(self, receive: Transfer) -> Transfer:
        """Say early that a message is to come."""
        return receive if self.mode == "replay" else super().expect(receive)

    def swap(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Send and receive some messages at once, and wait for all of them."""
        if self.mode == "replay":
            for transfer in receives:
                transfer.tensor.copy_(self._played())
            return
        super().swap(sends, receives)
        self._record([transfer.tensor for transfer in receives])

    def _record(self, received: Sequence[Tensor]) -> None:
        if self.mode == "record":
            self._tape += [tensor.clone() for tensor in received]

    def _played(self) -> Tensor:
        self._next += 1
        return self._tape[self._next - 1]


class _Done(dist.Work):
    """A piece of work that is over before it begins."""

    def wait(self, timeout: object = None) -> bool:
        return True
