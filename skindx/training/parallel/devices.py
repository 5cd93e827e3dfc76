"""Choice of a training's accelerator, and the number of ranks on this machine."""

from typing import Literal

import torch

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.training.config.engine import Accelerator, EngineSettings


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
    accelerator = resolve_accelerator(settings.accelerator)
    check_precision(settings, accelerator)
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


def workers_of(settings: EngineSettings) -> int:
    """Return how many processes a training starts here by its schedule.

    For a schedule by members that is by default one a GPU, or one a core. Raises UserError as
    `resolve_ranks` does.
    """
    ranks = resolve_ranks(settings)
    by_core = settings.schedule != "data" and settings.ranks == "auto"
    if by_core and resolve_accelerator(settings.accelerator) == "cpu":
        return cpu_count()
    return ranks


def check_precision(settings: EngineSettings, accelerator: str) -> None:
    """Raise UserError for a precision that the accelerator does not compute in."""
    if settings.precision == "fp16" and accelerator == "cpu":
        raise UserError(
            "engine.precision=fp16 needs a GPU: a CPU computes it slowly and loses small "
            "gradients; use bf16 or fp32."
        )
