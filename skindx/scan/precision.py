"""Choice of the fastest precision of the detector's convolutions on a machine."""

from skindx.core.machine import cpu_flags
from skindx.models.tile_detector import Precision

_FLAGS = {"avx512_bf16", "amx_bf16"}


def fast_precision(device: str) -> Precision:
    """Return bf16 where this machine computes it natively, else fp32."""
    if device != "cpu":
        import torch

        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if cpu_flags() & _FLAGS else "fp32"
