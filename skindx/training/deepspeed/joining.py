"""Join the other ranks: the process group under everything else."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count, keep_freed_memory
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.library import (
    accelerator_variables,
    init_distributed,
    ranks_on_node,
)
from skindx.training.launching.network import choose_interface
from skindx.training.launching.place import settle_place
from skindx.training.parallel.devices import check_precision, resolve_accelerator
from skindx.training.parallel.mesh import Mesh, ProcessGroup, mesh_of_all


def join(settings: EngineSettings) -> Mesh:
    """Join the other ranks (gloo on CPU, NCCL on GPUs) and return this process's place.

    Raises UserError when the other ranks cannot be reached.
    """
    accelerator = resolve_accelerator(settings.accelerator)
    check_precision(settings, accelerator)
    os.environ.update(accelerator_variables(accelerator))
    settle_place()
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
    choose_interface(settings.interface, os.environ["MASTER_ADDR"])
    try:
        init_distributed(
            "nccl" if accelerator == "cuda" else "gloo", timedelta(seconds=settings.timeout_s)
        )
    except (dist.DistError, RuntimeError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others at "
            f"{where} in {settings.timeout_s:g} s ({_first_line(error)}); check that every rank "
            "was started, that the nodes reach this address, and engine.interface."
        ) from None
    device = torch.device("cuda", local_rank) if accelerator == "cuda" else torch.device("cpu")
    return mesh_of_all(device, settings)


def join_nobody(settings: EngineSettings) -> Mesh:
    """Return a mesh of this process alone, whatever launcher started it beside others.

    LOCAL_RANK chooses its GPU. Call it before DeepSpeed is imported.
    """
    accelerator = resolve_accelerator(settings.accelerator)
    check_precision(settings, accelerator)
    settle_place()
    beside, local_rank = ranks_on_node(), int(os.environ.get("LOCAL_RANK", "0"))
    os.environ.update(accelerator_variables(accelerator))
    if accelerator == "cpu":
        keep_freed_memory()
        _share_cores()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(alone)
    if accelerator == "cuda":
        torch.cuda.set_device(local_rank)
        torch.backends.cudnn.benchmark = True
    backend = "nccl" if accelerator == "cuda" else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    init_distributed(backend)
    device = torch.device("cuda", local_rank) if accelerator == "cuda" else torch.device("cpu")
    return Mesh(ProcessGroup(0, 1), device, settings, beside)


def adopt_process_group() -> None:
    """Let DeepSpeed use the gloo group that this process has joined without it."""
    init_distributed("gloo")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _share_cores() -> None:
    """Give each rank of this node its part of the cores, where no launcher has said so."""
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, cpu_count() // ranks_on_node()))
