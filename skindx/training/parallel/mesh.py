"""The mesh of a training's ranks: devices, this process's place, and its collectives."""

import re
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.training.config.engine import Accelerator, EngineSettings
from skindx.training.parallel.messages import broadcast_object, gather_objects

Value = TypeVar("Value")

Watch = Callable[[str], AbstractContextManager[None]]
"""Context manager around what a rank waits for, by its name; for a timeline."""


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
    Along the axis `tensor` all ranks hold parts of layers, where the parallel form says so.
    """

    data: ProcessGroup
    device: torch.device
    settings: EngineSettings
    beside: int = 1
    """Number of trainings that run on this machine at the same time, this one included."""
    tensor: ProcessGroup = ProcessGroup(0, 1)
    number: int = 0
    """Number of this group, where one group trains after another; 0: there is only one."""
    started: int = 0
    """Number of ranks at full strength, where some are lost; 0: the present number."""
    kept: dict[str, Any] | None = field(default=None, compare=False)
    """State that this process keeps from group to group, such as images; None: only one group."""

    @property
    def is_main(self) -> bool:
        """True on the one rank that writes and prints."""
        return self.data.rank == 0

    @property
    def shares(self) -> int:
        """How many of the parts of a batch that ranks have at full strength this rank takes.

        On a GPU rounded up, so that what fitted into its memory still does, one after the other;
        elsewhere down, so that batch norms never see less at once.
        """
        ranks, left = self.started or self.data.size, self.data.size
        return -(-ranks // left) if self.device.type == "cuda" else ranks // left

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order, on every rank: plain values and arrays."""
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
        value, refused = broadcast_object(answer, 0, self.device)
        if refused is not None:
            raise UserError(refused)
        return cast(Value, value)


def mesh_of_all(device: torch.device, settings: EngineSettings) -> Mesh:
    """Return the mesh of all ranks that have met, by `engine.parallel`; every rank calls this."""
    rank, size = dist.get_rank(), dist.get_world_size()
    data, parallel = ProcessGroup(rank, size), settings.parallel
    parallel.check_ranks(size)
    if size == 1 or not parallel.splits:
        return Mesh(data, device, settings)
    # A group of its own: an exchange talks at the same time.
    group = cast(dist.ProcessGroup, dist.new_group(timeout=timedelta(seconds=settings.timeout_s)))
    return Mesh(data, device, settings, tensor=ProcessGroup(rank, size, group))


def sizes_of(count: int, ranks: int) -> tuple[int, ...]:
    """Share out `count` rows, the first ranks one more where it does not divide."""
    return tuple(count // ranks + (rank < count % ranks) for rank in range(ranks))


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


def resolve_accelerator(wanted: Accelerator) -> Literal["cpu", "cuda"]:
    """Return the accelerator to use. Raises UserError when a requested GPU is not there."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        built = torch.version.cuda or "none"
        raise UserError(
            "engine.accelerator=cuda is set, but torch finds no usable GPU (torch "
            f"{torch.__version__}, CUDA {built}); run `skindx doctor` to find the cause, or set "
            "engine.accelerator=cpu."
        )
    if wanted == "auto":
        return "cuda" if present else "cpu"
    return wanted


def resolve_ranks(settings: EngineSettings) -> int:
    """Return how many ranks to start here. Raises UserError for what this machine cannot do."""
    accelerator = resolve_accelerator(settings.accelerator)
    check_precision(settings, accelerator)
    if settings.hostfile and not settings.hostfile.is_file():
        raise UserError(f"the file {settings.hostfile} does not exist; correct engine.hostfile.")
    gpus = torch.cuda.device_count() if accelerator == "cuda" else 0
    if settings.ranks == "auto":
        return max(1, gpus)
    if settings.ranks < 1:
        raise UserError(
            f"engine.ranks is {settings.ranks}, but must be at least 1 or auto; correct "
            "engine.ranks."
        )
    if gpus and settings.ranks > gpus:
        raise UserError(
            f"engine.ranks={settings.ranks} is more than the {gpus} GPUs of this machine; set "
            f"engine.ranks to at most {gpus}."
        )
    return settings.ranks


def workers_of(settings: EngineSettings) -> int:
    """Return how many processes a training starts here by its schedule.

    For a schedule by members that is by default one a GPU, or one a core. Raises UserError as
    `resolve_ranks` does.
    """
    ranks = resolve_ranks(settings)
    by_core = not settings.schedule_kind.together and settings.ranks == "auto"
    if by_core and resolve_accelerator(settings.accelerator) == "cpu":
        return cpu_count()
    return ranks


def check_precision(settings: EngineSettings, accelerator: str) -> None:
    """Raise UserError for a precision that the accelerator does not compute in."""
    if settings.precision == "fp16" and accelerator == "cpu":
        raise UserError(
            "engine.precision=fp16 works only on a GPU; set engine.precision to bf16 or fp32."
        )


def peak_memory(device: torch.device) -> int:
    """Return the most bytes this process has held: of the GPU's memory, or on a CPU of its own.

    Pages of files (libraries, memory-mapped caches) are left out: processes share them, the system
    drops them at need, and a forked process maps fewer of them than a new one.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - _of_files()


def _of_files() -> int:
    """Return how many bytes of files this process has mapped and touched; 0 where unknown."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    result = re.search(r"^RssFile:\s+(\d+) kB", status, re.MULTILINE)
    return 1024 * int(result[1]) if result else 0
