"""One piece of work that is measured, with its counted operations and bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["fp32", "bf16", "fp16", "int8"]
Mode = Literal["inference", "training"]

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class Work:
    """A call that does `samples` of something, and what it must compute and move.

    `flops` counts 2 a multiply-add. `bytes_moved` counts each operand once, as if caches held the
    rest; None where that says nothing, as of a whole network.
    """

    run: Callable[[], object]
    samples: int
    flops: float
    bytes_moved: float | None = None


Maker = Callable[[torch.device], Work]
"""Puts the operands on a device. Raises RuntimeError (of torch) for what it does not have."""


@dataclass(frozen=True)
class Case:
    """A named piece of work: `gemm-1024`, bf16, training."""

    name: str
    precision: Precision
    mode: Mode
    kind: Literal["operator", "network"]
    make: Maker

    @property
    def key(self) -> str:
        """Name under which its figures stand."""
        return f"{self.name}, {self.precision}, {self.mode}"
