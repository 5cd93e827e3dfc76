"""Memory budget of a node, which decides whether each rank keeps a share or all images."""

from dataclasses import dataclass

KEEP = 0.5
"""Share of the free memory that images may take; the rest is the training's own."""


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
