"""Batches on their way to the GPU, while it still works on the step before."""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

# B = batch, S = side


def on_device(
    batches: Iterator[tuple[Tensor, Tensor]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images_BSS3, labels_B) on the device; nothing is copied for a CPU.

    For a GPU the images lie in pinned memory and are copied on a stream of their own, beside
    the kernels that are queued already; the kernels that come after wait for them. Torch keeps
    pinned and device memory until what was queued on it is done.
    """
    if device.type != "cuda":
        yield from batches
        return
    beside, ours = _copying(device), torch.cuda.current_stream(device)
    for images_BSS3, labels_B in batches:
        with torch.cuda.stream(beside):
            moved = (
                images_BSS3.to(device, non_blocking=True),
                labels_B.pin_memory().to(device, non_blocking=True),
            )
        ours.wait_stream(beside)
        for tensor in moved:
            tensor.record_stream(ours)
        yield moved


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream for copies: torch keeps the memory of each stream apart."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
