"""Join the other ranks, and leave them: the process groups under everything else."""

import os
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO

import torch
import torch.distributed as dist

from skindx.errors import UserError
from skindx.training.deepspeed.engine import import_deepspeed
from skindx.training.launching.network import choose_interface
from skindx.training.memory import keep_freed_memory, unlink_shared_buffer
from skindx.training.parallel.mesh import (
    Cluster,
    EngineSettings,
    check_precision,
    ranks_on_node,
    resolve_accelerator,
)


def join(settings: EngineSettings) -> Cluster:
    """Join the other ranks (gloo on CPU, NCCL on GPUs) and return this process's place.

    Raises UserError when the other ranks cannot be reached.
    """
    accelerator = resolve_accelerator(settings.accelerator)
    check_precision(settings, accelerator)
    # DeepSpeed looks for a GPU by itself; on a machine that has one, `cpu` must be said.
    os.environ["DS_ACCELERATOR"] = accelerator
    for name, alone in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, alone)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    local_rank = int(os.environ["LOCAL_RANK"])
    if accelerator == "cpu":
        keep_freed_memory()
        _share_cores()
    if accelerator == "cuda":
        torch.cuda.set_device(local_rank)
        torch.backends.cudnn.benchmark = True  # try each new shape's convolutions once
    deepspeed = import_deepspeed()
    choose_interface(settings.interface, os.environ["MASTER_ADDR"])
    try:
        with redirect_stdout(StringIO()):  # every rank prints that its operator was loaded
            deepspeed.init_distributed(
                dist_backend="nccl" if accelerator == "cuda" else "gloo",
                timeout=timedelta(seconds=settings.timeout_s),
                verbose=False,
            )
    except (dist.DistError, RuntimeError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others at "
            f"{where} in {settings.timeout_s:g} s ({_first_line(error)}); check that every rank "
            "was started, that the nodes reach this address, and engine.interface."
        ) from None
    if accelerator == "cpu":
        dist.barrier()  # every rank has mapped every buffer
        unlink_shared_buffer(dist.get_rank(), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
    device = torch.device("cuda", local_rank) if accelerator == "cuda" else torch.device("cpu")
    return Cluster(dist.get_rank(), dist.get_world_size(), device, settings)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _share_cores() -> None:
    """Give each rank of this node its part of the cores, where no launcher has said so."""
    if "OMP_NUM_THREADS" not in os.environ and hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks_on_node()))


def is_lost(error: Exception) -> bool:
    """True when a collective failed since another rank is gone, or did not come in time."""
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError):
        return True
    return isinstance(error, RuntimeError) and any(each in str(error) for each in _GONE)


def leave() -> None:
    """Leave the other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


_GONE = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
