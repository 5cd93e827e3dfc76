"""The only file that knows DeepSpeed: ranks, gradients and steps, the same on CPU and on GPUs.

One process a rank, started by DeepSpeed's launcher or by `torchrun`; a process that neither
started is a cluster of one.
"""

import logging
import os
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn

from skindx.config import Settings
from skindx.errors import UserError
from skindx.training.memory import keep_freed_memory

Accelerator = Literal["auto", "cpu", "cuda"]


class EngineSettings(Settings):
    """What the training runs on."""

    accelerator: Accelerator = "auto"
    ranks: int | Literal["auto"] = "auto"
    """Processes on this machine; auto: one a GPU, and on a CPU one."""
    hostfile: Path | None = None
    """DeepSpeed hostfile (`host slots=N` lines): start ranks on all its hosts instead, by ssh."""
    precision: Literal["fp32", "bf16"] = "fp32"
    gradient_clip: float = Field(1.0, ge=0)
    """Largest gradient norm; 0 switches clipping off."""
    timeout_s: float = Field(600, gt=0)
    """A collective that waits longer means that a rank is gone: the job ends."""


@dataclass(frozen=True)
class Cluster:
    """This process's place among the ranks."""

    rank: int
    world: int
    device: torch.device
    settings: EngineSettings

    @property
    def first(self) -> bool:
        """True on the one rank that writes and prints."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value`, in rank order, on every rank."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


def resolve_accelerator(wanted: Accelerator) -> Literal["cpu", "cuda"]:
    """Return the accelerator to use. Raises UserError when a requested GPU is not there."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        built = torch.version.cuda or "none"
        raise UserError(
            "engine.accelerator=cuda was asked for, but torch sees no usable GPU "
            f"(torch {torch.__version__}, CUDA {built}); run `skindx doctor`, "
            "or set engine.accelerator=cpu."
        )
    if wanted == "auto":
        return "cuda" if present else "cpu"
    return wanted


def resolve_ranks(settings: EngineSettings) -> int:
    """Return how many ranks to start here. Raises UserError for more than there are GPUs."""
    if settings.hostfile and not settings.hostfile.is_file():
        raise UserError(f"engine.hostfile {settings.hostfile} does not exist; check the path.")
    gpus = torch.cuda.device_count() if resolve_accelerator(settings.accelerator) == "cuda" else 0
    if settings.ranks == "auto":
        return max(1, gpus)
    if settings.ranks < 1:
        raise UserError(f"engine.ranks={settings.ranks} must be at least 1, or auto.")
    if gpus and settings.ranks > gpus:
        raise UserError(f"engine.ranks={settings.ranks}, but this machine has {gpus} GPUs.")
    return settings.ranks


def join(settings: EngineSettings) -> Cluster:
    """Join the other ranks (gloo on CPU, NCCL on GPUs) and return this process's place."""
    accelerator = resolve_accelerator(settings.accelerator)
    # DeepSpeed looks for a GPU by itself; on a machine that has one, `cpu` must be said.
    os.environ["DS_ACCELERATOR"] = accelerator
    for name, alone in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, alone)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    local_rank = int(os.environ["LOCAL_RANK"])
    if accelerator == "cpu":
        keep_freed_memory()
    if accelerator == "cuda":
        torch.cuda.set_device(local_rank)
    deepspeed = _import_deepspeed()
    with redirect_stdout(StringIO()):  # every rank prints that its operator was loaded
        deepspeed.init_distributed(
            dist_backend="nccl" if accelerator == "cuda" else "gloo",
            timeout=timedelta(seconds=settings.timeout_s),
            verbose=False,
        )
    device = torch.device("cuda", local_rank) if accelerator == "cuda" else torch.device("cpu")
    return Cluster(dist.get_rank(), dist.get_world_size(), device, settings)


def leave() -> None:
    """Leave the other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


class Engine:
    """A module under DeepSpeed: forward, backward with averaged gradients, step."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, cluster: Cluster, batch: int
    ) -> None:
        """Wrap `module`, already on the cluster's device; `batch` is the global batch."""
        settings = cluster.settings
        config: dict[str, Any] = {
            # Batches are cut unevenly where they must be: DeepSpeed only checks these products.
            "train_batch_size": max(1, batch // cluster.world) * cluster.world,
            "train_micro_batch_size_per_gpu": max(1, batch // cluster.world),
            "gradient_accumulation_steps": 1,
            "gradient_clipping": settings.gradient_clip,
            "zero_optimization": {"stage": 0},
            "steps_per_print": 2**31,
        }
        if settings.precision == "bf16":
            # `bf16.enabled` would cast BatchNorm's statistics as well; autocast leaves them alone.
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
        self.cluster = cluster
        self.optimizer = optimizer
        self._engine, *_ = _import_deepspeed().initialize(
            model=module, optimizer=optimizer, config=config, dist_init_required=False
        )

    def __call__(self, inputs: Tensor) -> Tensor:
        """Forward."""
        outputs: Tensor = self._engine(inputs)
        return outputs

    @property
    def module(self) -> nn.Module:
        """The module as it was given."""
        module: nn.Module = self._engine.module
        return module

    def train(self, mode: bool = True) -> None:
        """Switch between training and evaluation mode."""
        self._engine.train(mode)

    def backward(self, loss_sum: Tensor, global_count: int) -> None:
        """Accumulate gradients of the mean loss over `global_count` samples of all ranks.

        `loss_sum` is this rank's sum. DeepSpeed averages over ranks, so that ranks with uneven
        shares would weigh their samples differently; dividing by the true count undoes that.
        """
        self._engine.backward(loss_sum * (self.cluster.world / global_count))

    def step(self, learning_rate: float) -> None:
        """Update the weights and clear the gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_scale", 1.0)
        self._engine.step()

    def average_buffers(self, module: nn.Module | None = None) -> None:
        """Average batch-norm statistics over the ranks, which each saw their own share only.

        Those of `module`, on the cluster's device, instead of the engine's own when it is given.
        """
        if self.cluster.world == 1:
            return
        buffers = [e for e in (module or self.module).buffers() if e.is_floating_point()]
        if not buffers:
            return
        flat = torch.cat([each.reshape(-1).float() for each in buffers])
        dist.all_reduce(flat)
        flat /= self.cluster.world
        offset = 0
        for each in buffers:
            each.copy_(flat[offset : offset + each.numel()].view_as(each))
            offset += each.numel()

    def close(self) -> None:
        """Release the hooks that DeepSpeed put on the module."""
        self._engine.destroy()


def prebuild() -> str:
    """Compile the operator that DeepSpeed's CPU communication needs; return what happened."""
    if resolve_accelerator("auto") == "cuda":
        return "not needed: NCCL serves this machine's GPUs"
    os.environ["DS_ACCELERATOR"] = "cpu"
    _import_deepspeed()
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    builder = ShareMemCommBuilder()
    if not builder.is_compatible(verbose=False):
        return "not compatible with this CPU: gloo serves alone"
    builder.load(verbose=False)
    return "built"


def _import_deepspeed() -> Any:
    # DeepSpeed looks for ninja on PATH, where an environment that was not activated is not.
    programs = str(Path(sys.executable).parent)
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
    # On a machine without a GPU torch warns that it found none; `skindx doctor` says it better.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    try:
        import deepspeed
    except ImportError:
        raise UserError(
            "training needs DeepSpeed, which is not installed; run `pip install 'skindx[train]'`."
        ) from None
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    return deepspeed


def main(arguments: list[str]) -> int:
    """`python -m skindx.training.engine --prebuild`: compile ahead of the first start."""
    if arguments != ["--prebuild"]:
        print("usage: python -m skindx.training.engine --prebuild", file=sys.stderr)
        return 2
    print(prebuild())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
