"""The mesh of a training's ranks: this process's place, and its collectives."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.config.parallel import (
    ModelSettings,
    OperatorsSettings,
    OwtSettings,
    ParallelSettings,
    Tensor3dSettings,
    TensorSettings,
)
from skindx.training.parallel.gathering import gather_objects

Value = TypeVar("Value")


@dataclass(frozen=True)
class ProcessGroup:
    """The ranks along one axis of a mesh, as one of them sees it."""

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    """Process group of collectives along this axis; none: the group of all ranks."""


@dataclass(frozen=True)
class Mesh:
    """All ranks of a training, as one of them sees them; every rank calls a collective alike.

    Along the axis `data` each rank brings its share of every batch: these are always all ranks.
    Along the axis `tensor` each rank holds a part of every split layer: all ranks under `owt` and
    `operators` (where a layer may be split over fewer of them), groups of neighbours under
    `tensor`, `tensor3d` (a cube) and `model` (a pipeline), where a group works on the images of all
    its ranks.
    Along the axis `replicas` all ranks hold the same: there exchanges average the gradients.
    """

    data: ProcessGroup
    device: torch.device
    settings: EngineSettings
    beside: int = 1
    """Trainings at work on this machine at the same time, this one counted."""
    tensor: ProcessGroup = ProcessGroup(0, 1)
    replicas: tuple[int, ...] | None = None
    """Ranks of this one's axis `replicas`; none: all."""

    @property
    def is_main(self) -> bool:
        """True on the one rank that writes and prints."""
        return self.data.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order, on every rank."""
        return gather_objects(value, self.data.size, self.device)

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
    data, parallel = ProcessGroup(rank, size), settings.parallel
    along = tensor_size(parallel, size)
    if along == 1:
        return Mesh(data, device, settings)
    timeout = timedelta(seconds=settings.timeout_s)
    first = rank - rank % along
    for start in range(0, size, along):
        # Groups of their own: an exchange talks at the same time.
        made = dist.new_group(list(range(start, start + along)), timeout=timeout)
        if start == first:
            group = cast(dist.ProcessGroup, made)
    grouped = not isinstance(parallel, OwtSettings | OperatorsSettings)
    replicas = tuple(range(rank % along, size, along)) if grouped else None
    tensor = ProcessGroup(rank - first, along, group)
    return Mesh(data, device, settings, tensor=tensor, replicas=replicas)


def tensor_size(parallel: ParallelSettings, ranks: int) -> int:
    """Return how many of so many ranks share every split layer. Raises UserError."""
    if isinstance(parallel, OwtSettings):
        return ranks
    if isinstance(parallel, OperatorsSettings):
        for layer, degree in parallel.degrees.items():
            if ranks % degree:
                raise UserError(
                    f"engine.parallel.degrees: {layer} is split over {degree} ranks, which do not "
                    f"divide the {ranks} there are; change engine.ranks, or make the plan again "
                    "for as many."
                )
        return ranks
    if isinstance(parallel, TensorSettings):
        what, size = f"size={parallel.size}", parallel.size
    elif isinstance(parallel, ModelSettings):
        what, size = f"stages={parallel.stages}", parallel.stages
    elif isinstance(parallel, Tensor3dSettings):
        size = parallel.side**3
        what = f"side={parallel.side} makes cubes of {size} ranks, which"
    else:
        return 1
    if ranks % size:
        raise UserError(
            f"engine.parallel.{what} must divide the number of ranks, which is {ranks}; change "
            f"engine.ranks or engine.parallel.{what.partition('=')[0]}."
        )
    return size


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
