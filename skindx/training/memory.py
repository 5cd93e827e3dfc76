"""How much memory a training process has held."""

import re
import resource
from pathlib import Path

import torch


def peak_memory(device: torch.device) -> int:
    """Return the most bytes this process has held: of the GPU's memory, or on a CPU of its own.

    Pages of files (libraries, memory-mapped caches) are left out: processes share them, the system
    drops them at need, and a forked process maps fewer of them than a new one.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - _of_files()


def _of_files() -> int:
    """Return how many bytes of files this process has mapped and touched; 0 where unknown."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^RssFile:\s+(\d+) kB", status, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0
