"""How a rank loads its images: threads, batches ahead of the consumer, memory for them."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.machine import cpu_count
from skindx.data.loader.load import Fill, load
from skindx.data.loader.pool import Allocate, Pool


@dataclass(frozen=True)
class Reading:
    """How a rank works on its images: threads, and batches in work ahead of the consumer."""

    threads: int
    prefetch: int
    allocate: Allocate
    """Gives the memory of batches: see `memory_for`."""

    def load(
        self, fill: Fill, shares: Sequence[NDArray[np.int64]], side: int
    ) -> Generator[NDArray[np.uint8], None, None]:
        """Yield a batch (B x side x side x 3) for each index array, filled on the threads."""
        return load(
            fill,
            shares,
            side,
            threads=self.threads,
            prefetch=self.prefetch,
            allocate=self.allocate,
        )


def threads_for(wanted: int | str, ranks_on_node: int) -> int:
    """Return the loader's threads in one rank."""
    if isinstance(wanted, int):
        return wanted
    return max(1, cpu_count() // ranks_on_node)


def memory_for(device: torch.device) -> Allocate:
    """Return where batches are written: for a GPU pinned memory, which it copies directly.

    Torch uses its pinned blocks again by itself.
    """
    return _pinned if device.type == "cuda" else Pool()


def _pinned(shape: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    pinned: NDArray[np.uint8] = torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
    return pinned
