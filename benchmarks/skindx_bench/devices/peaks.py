"""The memory bandwidth that the device reaches at best, by copies."""

import torch

from skindx_bench.devices.work import Case, Work


def bandwidth_cases(memory_mb: float) -> list[Case]:
    """Return a copy and a triad (McCalpin's STREAM) over `memory_mb` megabytes an operand."""
    count = max(1, int(memory_mb * 1e6 / 4))

    def copy(device: torch.device) -> Work:
        source = torch.zeros(count, device=device)
        target = torch.empty_like(source)
        return Work(lambda: target.copy_(source), 1, 0.0, 8.0 * count)

    def triad(device: torch.device) -> Work:
        a, b = torch.zeros(count, device=device), torch.ones(count, device=device)
        target = torch.empty_like(a)
        return Work(lambda: torch.add(a, b, alpha=3.0, out=target), 1, 2.0 * count, 12.0 * count)

    return [
        Case("memory copy", "fp32", "inference", "operator", copy),
        Case("memory triad", "fp32", "inference", "operator", triad),
    ]
