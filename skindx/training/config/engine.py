"""What a training runs on: devices, ranks, precision, ZeRO."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from skindx.config import Settings

Accelerator = Literal["auto", "cpu", "cuda"]


class EngineSettings(Settings):
    """Devices, ranks, precision and communication of a training."""

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
    """Normalise by the statistics of all ranks' images, as one process would."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    channels_last: bool = False
    """Keep weights channels last too, as the images are."""
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
