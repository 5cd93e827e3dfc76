"""What a training runs on, and a process's place among the ranks."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

import torch
import torch.distributed as dist
from pydantic import Field, model_validator

from skindx.config import Settings
from skindx.errors import UserError

Value = TypeVar("Value")

Accelerator = Literal["auto", "cpu", "cuda"]


class EngineSettings(Settings):
    """What the training runs on."""

    accelerator: Accelerator = "auto"
    ranks: int | Literal["auto"] = "auto"
    """Processes on this machine; auto: one a GPU, and on a CPU one."""
    hostfile: Path | None = None
    """DeepSpeed hostfile (`host slots=N` lines): start ranks on all its hosts instead."""
    launcher: Literal["pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm"] = "pdsh"
    """What DeepSpeed starts the hosts of a hostfile with; pdsh works by ssh."""
    port: int = Field(29500, ge=1024, le=65535)
    """Where the first host of a hostfile waits for the others."""
    interface: str | None = None
    """Network interface between the nodes (eth0, ib0); none: the one that leads to the first."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """bf16, fp16: weights stay fp32, convolutions and products are computed in half the bits."""
    zero: Literal[0, 1, 2, 3] = 0
    """DeepSpeed's ZeRO stage: ranks share out optimizer (1), gradients (2) and weights (3)."""
    deepspeed: Path | None = None
    """JSON of further DeepSpeed settings."""
    gradient_clip: float = Field(1.0, ge=0)
    """Largest gradient norm; 0 switches clipping off."""
    sync_batch_norm: bool = False
    """Normalise by the statistics of all ranks' pictures, as one process would."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    channels_last: bool = False
    """Keep weights channels last too, as the pictures are."""
    compile: bool = False
    """Train through torch.compile; evaluation stays eager."""
    timeout_s: float = Field(600, gt=0)
    """A collective that waits longer means that a rank is gone: the job ends."""

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.channels_last and self.zero:
            raise ValueError("channels_last needs zero=0: ZeRO keeps all weights in one flat row")
        if self.compile and self.zero == 3:
            raise ValueError("compile does not work with zero=3; choose one of them")
        if self.compile and self.activation_checkpointing:
            raise ValueError(
                "compile already computes again what is cheap; switch activation_checkpointing off"
            )
        return self

    def decisive(self) -> dict[str, Any]:
        """Return what decides the weights; what is left at its default is not in it."""
        from skindx.training.deepspeed.config import read_extra

        parts: dict[str, Any] = {}
        if self.sync_batch_norm:
            parts["sync_batch_norm"] = True
        if self.deepspeed:
            parts["deepspeed"] = read_extra(self.deepspeed)
        return {"precision": self.precision, "gradient_clip": self.gradient_clip, **parts}


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

    def from_first(self, work: Callable[[], Value]) -> Value:
        """Return on every rank what `work` returns on the first, or raise the UserError it raised.

        For what is read from a file: on another node a file may show up later, or never.
        """
        told: list[Any] = [None, None]
        if self.first:
            try:
                told[0] = work()
            except UserError as error:
                told[1] = str(error)
        dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise UserError(told[1])
        return cast(Value, told[0])


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
    """Return how many ranks to start here. Raises UserError for what this machine cannot do."""
    from skindx.training.deepspeed.config import read_extra

    accelerator = resolve_accelerator(settings.accelerator)
    check_precision(settings, accelerator)
    if settings.deepspeed:
        read_extra(settings.deepspeed)
    if settings.hostfile and not settings.hostfile.is_file():
        raise UserError(f"engine.hostfile {settings.hostfile} does not exist; check the path.")
    gpus = torch.cuda.device_count() if accelerator == "cuda" else 0
    if settings.ranks == "auto":
        return max(1, gpus)
    if settings.ranks < 1:
        raise UserError(f"engine.ranks={settings.ranks} must be at least 1, or auto.")
    if gpus and settings.ranks > gpus:
        raise UserError(f"engine.ranks={settings.ranks}, but this machine has {gpus} GPUs.")
    return settings.ranks


def check_precision(settings: EngineSettings, accelerator: str) -> None:
    """Raise UserError for a precision that the accelerator does not compute in."""
    if settings.precision == "fp16" and accelerator == "cpu":
        raise UserError(
            "engine.precision=fp16 needs a GPU: a CPU computes it slowly and loses small "
            "gradients; use bf16 or fp32."
        )


def ranks_on_node() -> int:
    """Return how many ranks this node was given, by torchrun (1st name) or DeepSpeed (2nd)."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        if name in os.environ:
            return int(os.environ[name])
    return 1
