"""How much of a GPU's peak a training uses: known peaks, and the operations of a step."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from skindx_bench.harness.clock import Figure, median

_TFLOPS: tuple[tuple[str, float], ...] = (
    ("B200", 2250),
    ("H200 NVL", 835),
    ("H200", 989),
    ("H100 NVL", 835),
    ("H100 PCIe", 756),
    ("H100", 989),
    ("H800 PCIe", 756),
    ("H800", 989),
    ("H20", 148),
    ("A100", 312),
    ("A800", 312),
    ("A40", 149.7),
    ("A30", 165),
    ("A10", 125),
    ("L40S", 362),
    ("L40", 181),
    ("L4", 121),
    ("RTX A6000", 154.8),
    ("RTX 6000 Ada", 364.2),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71),
)
"""Words of a GPU's name -> its peak in TFLOP/s: bfloat16 products without sparsity, sums in
float32, from NVIDIA's data sheets. A longer name stands before the shorter one that is in it."""


def peak_flops(name: str) -> float | None:
    """Return the peak of the GPU of this name in FLOP/s, or None for one that is not listed."""
    for words, tflops in _TFLOPS:
        if re.search(rf"\b{re.escape(words)}\b", name.replace("-", " ")):
            return tflops * 1e12
    return None


def peak_shares(
    seconds: Mapping[str, Sequence[float]], flops: float, gpu: str
) -> dict[str, Figure]:
    """Return which share of the GPU's peak each loop uses that takes `flops` in these seconds.

    Empty for a GPU that is not listed.
    """
    peak = peak_flops(gpu)
    if peak is None:
        return {}
    return {
        f"{loop}, share of peak": median([flops / took / peak for took in samples], "of peak")
        for loop, samples in seconds.items()
    }


def training_flops(network: Any, side: int) -> float:
    """Return the operations of one image's forward and backward pass (2 a multiply-add).

    `network` takes float images of `side` pixels, channels first, on the CPU.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    count = 2  # batch normalisation needs more than one
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(count, 3, side, side)).sum().backward()
    network.zero_grad(set_to_none=True)
    return float(counter.get_total_flops()) / count
