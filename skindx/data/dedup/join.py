"""All pairs of 64-bit codes within a Hamming radius: exact, by pigeonhole buckets.

Cut 64 bits into radius + a blocks: two codes within the radius agree in at least a of them. So
each choice of a blocks buckets the codes by the bits of these blocks, and only codes of one
bucket are compared. a = 0 is one bucket: brute force. Each pair is given once, by the first a
blocks in which it agrees.
"""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.machine import require_extra

if TYPE_CHECKING:
    from types import ModuleType

# N = codes, K = kinds of hash, O = orientations, M = blocks, P = pairs, L = links

MOST_CODES = 1 << 28
MOST_CHOICES = 5000
MOST_PAIRS = 50_000_000
"""More would take gigabytes, and say no more than that everything looks like everything."""
SORT_NS, TABLE_NS, COMPARE_NS = 12.0, 1.5, 0.2
"""For each code sorted, bucket made, pair compared; they pick the plan and never the answer."""


def pairs_within(
    codes_N: NDArray[np.uint64], radius: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Return (first_P, second_P, distance_P) of all pairs within `radius` bits.

    first < second; each pair stands once, sorted by first, then second. One thread. Memory is
    17 bytes a pair and some 50 bytes a code; the pairs of c equal codes are c(c - 1)/2. Raises
    UserError when numba is not installed, or for more than MOST_PAIRS.
    """
    return turned_pairs_within(np.asarray(codes_N, np.uint64).reshape(-1, 1, 1), radius)


def turned_pairs_within(
    codes_NKO: NDArray[np.uint64], radius: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Return `pairs_within` for images with K codes in O orientations.

    The distance of first and second is, over the orientations of first, the least of the largest
    Hamming distance among the K kinds: all kinds must agree on the same orientation. Second
    stays in orientation 0.
    """
    return _join(np.ascontiguousarray(codes_NKO, np.uint64), len(codes_NKO), 0, radius)


def turned_pairs_between(
    firsts_NKO: NDArray[np.uint64], seconds_NKO: NDArray[np.uint64], radius: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Return `turned_pairs_within` for a first out of one array and a second out of another."""
    codes_NKO = np.concatenate([firsts_NKO, seconds_NKO])
    n = len(firsts_NKO)
    first_P, second_P, distance_P = _join(codes_NKO, n, n, radius)
    return first_P, second_P - np.int32(n), distance_P


def _join(
    codes_NKO: NDArray[np.uint64], end: int, start: int, radius: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Return the pairs of a first before `end` and a second from `start` on."""
    n, _, orientations = codes_NKO.shape
    assert n < MOST_CODES, n
    assert radius >= 0, radius
    kernels = import_kernels()
    # One kind is enough to find the pairs; the kernel asks the others about what it found.
    codes_ON = np.ascontiguousarray(codes_NKO[:, 0].T)
    agree = _must_agree(n, radius)
    blocks = _cut(radius + agree if agree else 0)
    masks = np.array([((1 << width) - 1) << shift for shift, width in blocks], np.uint64)
    packed_P, filled = np.empty(1024, np.int64), 0
    for chosen in itertools.combinations(range(len(blocks)), agree):
        buckets = _key([blocks[block] for block in chosen], n)
        starts, codes, position = kernels.bucket_sort(codes_ON[0, start:], *buckets)
        upright = turned = (starts, codes, position + np.int32(start))
        for orientation in range(orientations):
            if orientation or start:
                turned = kernels.bucket_sort(codes_ON[orientation, :end], *buckets)
            what = (codes_NKO, orientation, radius, masks, np.array(chosen, np.int64))
            found = kernels.emit(*what, turned, upright, packed_P[filled:])
            if filled + found > MOST_PAIRS:
                raise UserError(
                    f"more than {MOST_PAIRS:,} pairs among {n:,} different codes are within "
                    f"{radius} bits, so that most images look alike to the hashes; lower "
                    f"dedup.radius and groups.radius, or take such images out of the sources."
                )
            if filled + found > len(packed_P):
                packed_P.resize(filled + found + len(packed_P) // 2, refcheck=False)
                kernels.emit(*what, turned, upright, packed_P[filled:])
            filled += found
    packed_P.resize(filled, refcheck=False)
    packed_P.sort()
    first_P, second_P, distance_P = kernels.unpack(packed_P)
    return first_P, second_P, distance_P


def _must_agree(n: int, radius: int) -> int:
    """Return the a that joins evenly spread codes fastest; the answer is the same with any."""

    def cost_ns(agree: int) -> float:
        bits = min(64 * agree / (radius + agree), _most_bits(n)) if agree else 0
        choice_ns = n * SORT_NS + 2**bits * TABLE_NS + n * n / 2 ** (bits + 1) * COMPARE_NS
        return math.comb(radius + agree, agree) * choice_ns

    blocks_fit = range(1, 65 - radius)
    few = (agree for agree in blocks_fit if math.comb(radius + agree, agree) <= MOST_CHOICES)
    return min((0, *few), key=cost_ns)


def _cut(count: int) -> list[tuple[int, int]]:
    """Return (shift, width) of the blocks."""
    edges = [64 * block // max(count, 1) for block in range(count + 1)]
    return [(low, high - low) for low, high in itertools.pairwise(edges)]


def _key(
    blocks: Sequence[tuple[int, int]], n: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return shifts and widths of the bits that tell buckets apart: not more than n calls for.

    Codes that agree in the blocks share a bucket also when some bits are left out.
    """
    left, shifts, widths = _most_bits(n), [], []
    for shift, width in blocks:
        shifts.append(shift)
        widths.append(min(width, left))
        left -= widths[-1]
    return np.array(shifts, np.uint64), np.array(widths, np.uint64)


def _most_bits(n: int) -> int:
    return max(n, 1).bit_length()


def import_kernels() -> "ModuleType":
    """Return the compiled part of the join. Raises UserError without the `data` extra."""
    require_extra("data", "numba", purpose="the search for near duplicates")
    from skindx.data.dedup import join_kernels

    return join_kernels
