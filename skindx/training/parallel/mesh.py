"""Who talks to whom in a training: this process's place among the ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from skindx.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.config.parallel import OwtSettings

Value = TypeVar("Value")


@dataclass(frozen=True)
class ProcessGroup:
    """The ranks along one axis of a mesh, as one of them sees it."""

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    """What collectives along this axis go through; none: the group of all ranks."""


@dataclass(frozen=True)
class Mesh:
    """All ranks of a training, as one of them sees them; every rank calls a collective alike.

    Along the axis `data` each rank works on its share of every batch; along the axis `tensor`
    each rank holds a part of every split layer. Under `owt` both are all ranks: the same ones share
    out the images of the convolutions and the outputs of the wide layers.
    """

    data: ProcessGroup
    device: torch.device
    settings: EngineSettings
    beside: int = 1
    """Trainings at work on this machine at the same time, this one counted."""
    tensor: ProcessGroup = ProcessGroup(0, 1)

    @property
    def is_main(self) -> bool:
        """True on the one rank that writes and prints."""
        return self.data.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order, on every rank."""
        values: list[Any] = [None] * self.data.size
        dist.all_gather_object(values, value)
        return values

    def broadcast_from_main(self, work: Callable[[], Value]) -> Value:
        """Return on every rank what `work` returns on the main one, or raise its UserError.

        For what is read from a file: on another node a file may show up later, or never.
        """
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer[0] = work()
            except UserError as error:
                answer[1] = str(error)
        dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise UserError(answer[1])
        return cast(Value, answer[0])


def mesh_of_all(device: torch.device, settings: EngineSettings) -> Mesh:
    """Return the mesh of all ranks that have met, by `engine.parallel`; every rank calls this."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = ProcessGroup(0, 1)
    if isinstance(settings.parallel, OwtSettings) and size > 1:
        # A group of its own: an exchange talks at the same time.
        group = dist.new_group(timeout=timedelta(seconds=settings.timeout_s))
        tensor = ProcessGroup(rank, size, cast(dist.ProcessGroup, group))
    return Mesh(ProcessGroup(rank, size), device, settings, tensor=tensor)


def leave() -> None:
    """Leave the other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


_GONE = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")


def is_lost(error: Exception) -> bool:
    """True when a collective failed because another rank is gone, or did not come in time."""
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _GONE)
