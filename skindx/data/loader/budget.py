"""Memory budget of a node, which decides whether each rank keeps a share or all images."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KEEP = 0.5
"""Share of the free memory that images may take; the rest is the training's own."""

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a training: how many of all ranks it runs, and what its memory can take."""

    ranks: int
    world: int
    free_bytes: int

    @property
    def budget_bytes(self) -> float:
        """Return how much of its memory images may take."""
        return KEEP * self.free_bytes


def wants_shards(total_bytes: int, node: Node, copies: int) -> bool:
    """Return whether the node holds its ranks' shares, but not all the images `copies` times.

    Ranks that share what they keep have one copy, others have one each.
    """
    whole = total_bytes * copies
    shares = total_bytes * node.ranks / node.world
    return whole > node.budget_bytes and shares < whole


def kept_share(total_bytes: int, node: Node, copies: int, *, sharded: bool) -> float:
    """Return which share of the images that a rank sees it can keep in its part of the memory."""
    needed = total_bytes * (node.ranks / node.world if sharded else copies)
    return min(1.0, node.budget_bytes / needed) if needed else 1.0


def free_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the bytes that this process may still take: the machine's, or less in a container."""
    if not meminfo.is_file():
        # No Linux: half of what is built in is a careful guess.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    free = _table(meminfo)["MemAvailable:"] * 1024
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
        # Files in the page cache count as used, but give way.
        cached = _table(cgroup / "memory.stat").get("inactive_file", 0)
        free = min(free, int(text) - int(used.read_text()) + cached)
    return max(0, free)


def _table(file: Path) -> Mapping[str, int]:
    rows = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2}
