"""Ranks that share one GPU: NCCL takes one rank a GPU, and gloo sends from host memory only."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.comm.fabric import Fabric, Transfer


class _ArrivesByHost:
    """A message under way to the host's memory, which is copied to the device when it is there."""

    def __init__(self, work: dist.Work, host: Tensor, tensor: Tensor) -> None:
        self._work, self._host, self._tensor = work, host, tensor

    def wait(self) -> None:
        self._work.wait()
        self._tensor.copy_(self._host)


class HostFabric(Fabric):
    """Two ranks that share a GPU talk by gloo, which sends messages from host memory only."""

    def expect(self, receive: Transfer) -> Transfer:
        host = torch.empty_like(receive.tensor, device="cpu")
        work = super().expect(replace(receive, tensor=host)).work
        assert work is not None
        arrives: Any = _ArrivesByHost(work, host, receive.tensor)
        return replace(receive, work=arrives)

    def share(self, rows_PM: Tensor) -> list[dist.Work]:
        host = rows_PM.cpu()
        for work in super().share(host):
            work.wait()
        rows_PM.copy_(host)
        return []

    def deal(self, rows_PM: Tensor, into_PM: Tensor) -> list[dist.Work]:
        host = into_PM.cpu()
        for work in super().deal(rows_PM.cpu(), host):
            work.wait()
        into_PM.copy_(host)
        return []

    def swap(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        expected = [message if message.work else self.expect(message) for message in receives]
        super().swap([replace(message, tensor=message.tensor.cpu()) for message in sends], expected)
