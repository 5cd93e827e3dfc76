"""Sharing out K-FAC's work: the longest first, over a grid of ranks.

A row of workers holds the eigenvectors of some layers, and each of its ranks sends the finished
gradients down its column (KAISA, Pauloski et al. 2021, arXiv 2107.01739, section 4). One row is
K-FAC with all eigenvectors everywhere, one column that with each in one place.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def share_out(costs: Mapping[Key, float], places: int) -> dict[Key, int]:
    """Return a place for each key: the longest first, to where the least is (Graham 1969)."""
    loads = [0.0] * places
    result = {}
    for key in sorted(costs, key=lambda key: -costs[key]):
        place = loads.index(min(loads))
        result[key] = place
        loads[place] += costs[key]
    return result


def cost(blocks: int, width: int) -> float:
    """Return the relative cost of the eigenvectors of a stack of symmetric matrices."""
    return float(blocks * width**3)


def workers_of(share: float, ranks: int) -> int:
    """Return how many ranks hold a layer's eigenvectors: the divisor of `ranks` next to `share`."""
    return min(divisors(ranks), key=lambda count: (abs(count - share * ranks), count))


@dataclass(frozen=True)
class Sharing:
    """Ranks, and what each of them works at."""

    ranks: int
    workers: int
    row_of: Mapping[str, int]
    """Layer -> the row whose ranks precondition it."""
    rank_of: Mapping[tuple[str, str], int]
    """Layer and factor -> the rank that decomposes it."""

    @property
    def rows(self) -> Sequence[Sequence[int]]:
        """The ranks of each row."""
        return [range(at, at + self.workers) for at in range(0, self.ranks, self.workers)]

    @property
    def columns(self) -> Sequence[Sequence[int]]:
        """The ranks of each column: one of each row."""
        return [range(at, self.ranks, self.workers) for at in range(self.workers)]


def plan_sharing(
    shapes: Mapping[str, Mapping[str, tuple[int, int]]], ranks: int, share: float
) -> Sharing:
    """Deal out layers to rows and, within each row, factors to ranks.

    `shapes` has for each layer (blocks, width) of each factor.
    """
    workers = workers_of(share, ranks)
    of_layer = {
        name: sum(cost(*shape) for shape in factors.values()) for name, factors in shapes.items()
    }
    row_of = share_out(of_layer, ranks // workers)
    rank_of: dict[tuple[str, str], int] = {}
    for row in range(ranks // workers):
        costs = {
            (name, factor): cost(*shape)
            for name, factors in shapes.items()
            if row_of[name] == row
            for factor, shape in factors.items()
        }
        placed = share_out(costs, workers)
        rank_of |= {key: row * workers + place for key, place in placed.items()}
    return Sharing(ranks, workers, row_of, rank_of)


@cache
def divisors(ranks: int) -> tuple[int, ...]:
    """Return all divisors of a number, ascending."""
    low = [count for count in range(1, math.isqrt(ranks) + 1) if ranks % count == 0]
    return tuple(dict.fromkeys([*low, *(ranks // count for count in reversed(low))]))
