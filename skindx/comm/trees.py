"""Spanning trees for the multi-color exchange, and the rounds in which their edges are used."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Tree:
    """One color's tree: `order[0]` is the root, the children of place i are a i + 1 .. a i + a."""

    order: tuple[int, ...]
    arity: int

    def parent(self, place: int) -> int:
        """Return the place above `place`."""
        return (place - 1) // self.arity

    def depth(self, place: int) -> int:
        """Return how many edges lie between `place` and the root."""
        depth = 0
        while place:
            place, depth = self.parent(place), depth + 1
        return depth

    @property
    def height(self) -> int:
        """Edges on the longest way to the root."""
        return self.depth(len(self.order) - 1)


@dataclass(frozen=True)
class Edge:
    """One message of a round: a chunk of a color on its way up (summing) or down."""

    color: int
    chunk: int
    way: Literal["up", "down"]
    sender: int
    receiver: int


def color_trees(ranks: int, colors: int) -> list[Tree]:
    """Return `colors` spanning trees of which no rank is an internal node twice.

    Kumar et al. 2017, arXiv 1711.00705, section 3.1. Every tree is a complete one whose first
    places, which have children, are taken by ranks of its own; the arity is the smallest for which
    these are enough. Raises ValueError for more colors than ranks.
    """
    if not 1 <= colors <= ranks:
        raise ValueError(f"{colors} colors need as many ranks, and there are {ranks}")
    share = ranks // colors
    arity = next(width for width in range(1, ranks + 1) if -(-(ranks - 1) // width) <= share)
    return [
        Tree(tuple((color * share + place) % ranks for place in range(ranks)), max(arity, 2))
        for color in range(colors)
    ]


def rounds(trees: list[Tree], chunks: int) -> list[list[Edge]]:
    """Return which messages are sent at the same time, round after round; the same on every rank.

    A chunk leaves a place one round after its children's have come, and the next chunk follows one
    round behind it, up to the root and down again.
    """
    last = chunks + 2 * max(tree.height for tree in trees) - 1
    found: list[list[Edge]] = [[] for _ in range(last)]
    for color, tree in enumerate(trees):
        for place in range(1, len(tree.order)):
            child, parent = tree.order[place], tree.order[tree.parent(place)]
            depth = tree.depth(place)
            for chunk in range(chunks):
                up, down = chunk + tree.height - depth, chunk + tree.height + depth - 1
                found[up].append(Edge(color, chunk, "up", child, parent))
                found[down].append(Edge(color, chunk, "down", parent, child))
    return found
