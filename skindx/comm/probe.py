"""Time the all-reduce in use at several sizes, for a cost model."""

import time

import torch

from skindx.comm.fabric import Fabric

SIZES_BYTES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22, 24))

REPEATS = 5


def probe(fabric: Fabric, most_bytes: int) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of this rank for sizes up to `most_bytes`; every rank calls this.

    What it sends is not counted.
    """
    counted, samples = fabric.bytes_sent, []
    # Two at least: one cannot tell latency from bandwidth.
    sizes = [size for size in SIZES_BYTES if size <= max(most_bytes, SIZES_BYTES[1])]
    tensors = [torch.zeros(size // 4, device=fabric.device) for size in sizes]
    for repeat in range(REPEATS + 1):
        for tensor in tensors:
            fabric.all_reduce(tensor[:1]).wait()  # begin together
            _settle(fabric.device)
            started = time.perf_counter()
            fabric.all_reduce(tensor).wait()
            _settle(fabric.device)
            if repeat:  # the first one opens connections
                samples.append((tensor.nbytes, time.perf_counter() - started))
    fabric.bytes_sent = counted
    return samples


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
