"""Clusters of near images, in arrays: images of equal codes count as one, so nothing explodes.

c images of equal codes are c - 1 links from the first to the others, and not c(c - 1)/2. That
loses nothing: they are equally far from everything, so that any of them stands for all.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EQUAL = -1
"""The "distance" in a link from the first image of some codes to another one of the same codes.

Only the first has links to images of other codes."""

# N = images, L = links, E = edges, both ways; a node is an image that stands for its equals


@dataclass(frozen=True, slots=True)
class Graph:
    """Images within a radius of each other."""

    node_N: NDArray[np.int64]
    """The first image of the same codes, itself where there is none before."""
    links_L2: NDArray[np.int64]
    """Pairs of different nodes."""


def graph(count: int, links_L3: NDArray[np.int64], radius: int) -> Graph:
    """Return the graph of `count` images whose links are rows (i, j, distance or EQUAL)."""
    node_N = np.arange(count)
    equal_L = links_L3[:, 2] == EQUAL
    node_N[links_L3[equal_L, 1]] = links_L3[equal_L, 0]
    near_L2 = node_N[links_L3[~equal_L & (links_L3[:, 2] <= radius), :2]]
    return Graph(node_N, near_L2[near_L2[:, 0] != near_L2[:, 1]])


def collapse(rows: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row stands first, and links (first, later, EQUAL) to its repetitions."""
    count = len(rows)
    flat = rows.reshape(count, int(np.prod(rows.shape[1:])))
    order = np.argsort(flat[:, 0], kind="stable")
    same = flat[order[1:], 0] == flat[order[:-1], 0]
    # Few share even their first code: only these are compared whole.
    doubtful = np.zeros(count, bool)
    doubtful[order[1:][same]] = doubtful[order[:-1][same]] = True
    at = np.flatnonzero(doubtful)
    first_N = np.arange(count)
    if len(at):
        _, first, which = np.unique(flat[at], axis=0, return_index=True, return_inverse=True)
        first_N[at] = at[first[which.reshape(-1)]]
    later = np.flatnonzero(first_N != np.arange(count))
    equal_L3 = np.stack([first_N[later], later, np.full(len(later), EQUAL)], axis=1)
    return np.flatnonzero(first_N == np.arange(count)), equal_L3


def centres(near: Graph, order_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each image the one that stands for it; `order_N` has the best image first.

    Best first, each image still free takes its free neighbours: no two centres are neighbours,
    and every other image is a neighbour of its centre, so nothing chains. Images of equal
    codes always go together, so the best of them decides for all.
    """
    count = len(order_N)
    best_N = np.empty(count, np.int64)
    best_N[near.node_N[order_N[::-1]]] = order_N[::-1]  # the last one written is the best
    ends_E = np.concatenate([near.links_L2, near.links_L2[:, ::-1]])
    ends_E = ends_E[np.argsort(ends_E[:, 0], kind="stable")]
    stops = np.cumsum(np.bincount(ends_E[:, 0], minlength=count))
    starts = np.concatenate([[0], stops[:-1]])
    centre_N = np.arange(count)
    free_N = np.ones(count, bool)
    leading = order_N[best_N[near.node_N[order_N]] == order_N]
    nodes = near.node_N[leading]
    for node in nodes[starts[nodes] < stops[nodes]].tolist():
        if free_N[node]:
            around = ends_E[starts[node] : stops[node], 1]
            around = around[free_N[around]]
            centre_N[around] = node
            free_N[around] = free_N[node] = False
    chosen: NDArray[np.int64] = best_N[centre_N[near.node_N]]
    return chosen


def connected(count: int, links_L2: NDArray[np.int64]) -> list[int]:
    """Return the number of its connected component for each of `count` images."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    ones_L = np.ones(len(links_L2), bool)
    joined = coo_matrix((ones_L, (links_L2[:, 0], links_L2[:, 1])), shape=(count, count))
    labels: list[int] = connected_components(joined, directed=False)[1].tolist()
    return labels
