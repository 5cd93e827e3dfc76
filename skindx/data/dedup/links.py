"""Links between near images: the exact join of their hashes within a radius."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.data.dedup.clusters import collapse
from skindx.data.dedup.join import turned_pairs_within

# N = images, K = kinds of hash, O = orientations, U = different codes, P = pairs, L = links

Join = Callable[[NDArray[np.uint64], int], tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]]]
"""What `turned_pairs_within` is."""


def near_links(
    codes_NKO: NDArray[np.uint64], radius: int, join: Join = turned_pairs_within
) -> NDArray[np.int64]:
    """Return links_L3, rows (i, j, distance) with i < j, of all pairs within `radius` bits.

    The distance of two images is, over the eight orientations of i, the least of the largest
    Hamming distance among the K kinds: all kinds must agree on the same orientation. Of images
    with equal codes the first has a link to each of the others, of distance EQUAL, and stands for
    them in all other links. `join` may find the pairs in another way. Sorted and exact; memory is
    33 bytes a link. Raises UserError when numba is not installed, or for more links than memory
    should hold.
    """
    first_U, equal_L3 = collapse(codes_NKO)
    first_P, second_P, distance_P = join(codes_NKO[first_U], radius)
    columns = (first_U[first_P], first_U[second_P], distance_P)
    links_L3 = np.stack(columns, axis=1, dtype=np.int64, casting="safe")
    if len(equal_L3):
        links_L3 = np.concatenate([links_L3, equal_L3])
        links_L3 = links_L3[np.lexsort((links_L3[:, 1], links_L3[:, 0]))]
    return links_L3


def with_pairs(links_L3: NDArray[np.int64], pairs_P2: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the links and the pairs, as links of distance 0, sorted; each pair stands once."""
    new_P3 = np.concatenate([pairs_P2, np.zeros((len(pairs_P2), 1), np.int64)], axis=1)
    both_L3 = np.concatenate([links_L3, new_P3])
    # Of a pair that stands twice the nearer link comes first, and stays.
    both_L3 = both_L3[np.lexsort((both_L3[:, 2], both_L3[:, 1], both_L3[:, 0]))]
    again_L = np.zeros(len(both_L3), bool)
    again_L[1:] = (both_L3[1:, :2] == both_L3[:-1, :2]).all(axis=1)
    return both_L3[~again_L]
