"""The compiled loops of `hash_links`; importing this module imports numba."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from skindx.core.compiled_loops import compiled

# N = codes, K = kinds of hash, O = orientations, B = buckets, A = blocks that must agree

FIRST_SHIFT, SECOND_SHIFT = 35, 7
"""A packed pair: first (28 bits), second (28 bits), distance (7 bits); sorts as the triple does."""


def _intrinsic(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return cast(Callable[[Any], Any], intrinsic(function))


@_intrinsic
def _bits(context: Any, value: Any) -> Any:
    """Count the ones of a uint64: one instruction, eight at once where the machine has vectors."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@compiled
def bucket_sort(
    codes_N: NDArray[np.uint64], shifts_A: NDArray[np.uint64], widths_A: NDArray[np.uint64]
) -> tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.int32]]:
    """Return starts (B + 1), codes by bucket, and their positions, which ascend in each bucket.

    A code's bucket is the bits of A blocks, strung together.
    """
    n = len(codes_N)
    key_N = np.zeros(n, np.uint32)
    for a in range(len(shifts_A)):
        shift, width = shifts_A[a], widths_A[a]
        mask = (np.uint64(1) << width) - np.uint64(1)
        for i in range(n):
            key_N[i] = (np.uint64(key_N[i]) << width) | ((codes_N[i] >> shift) & mask)
    # Until the last loop ends, cell k + 1 counts up from the start of bucket k to its end.
    starts = np.zeros((1 << np.int64(widths_A.sum())) + 2, np.int32)
    for i in range(n):
        starts[np.int64(key_N[i]) + 2] += 1
    for bucket in range(2, len(starts)):
        starts[bucket] += starts[bucket - 1]
    sorted_N = np.empty(n, np.uint64)
    position_N = np.empty(n, np.int32)
    for i in range(n):
        cell = np.int64(key_N[i]) + 1
        at = starts[cell]
        starts[cell] = at + 1
        sorted_N[at] = codes_N[i]
        position_N[at] = i
    return starts[:-1], sorted_N, position_N


@compiled
def _distance(codes_NKO: NDArray[np.uint64], i: np.int64, j: np.int64, orientation: int) -> int:
    largest: Any = np.int64(0)
    for kind in range(codes_NKO.shape[1]):
        differ = codes_NKO[i, kind, orientation] ^ codes_NKO[j, kind, 0]
        largest = max(largest, np.int64(_bits(differ)))
    return int(largest)


@compiled
def _least_distance(
    codes_NKO: NDArray[np.uint64], i: np.int64, j: np.int64, orientation: int, radius: int
) -> int:
    """Return -1 where an earlier orientation is within the radius too and has given the pair."""
    for earlier in range(orientation):
        if _distance(codes_NKO, i, j, earlier) <= radius:
            return -1
    least = _distance(codes_NKO, i, j, orientation)
    for later in range(orientation + 1, codes_NKO.shape[2]):
        if least == 0:
            break
        least = min(least, _distance(codes_NKO, i, j, later))
    return least


@compiled
def _first_to_agree(
    differ: np.uint64, blocks: NDArray[np.uint64], chosen: NDArray[np.int64]
) -> bool:
    """Tell whether the first A blocks in which two codes agree are the `chosen` ones."""
    at = 0
    for block in range(len(blocks)):
        if at == len(chosen):
            return True
        if differ & blocks[block] == 0:
            if chosen[at] != block:
                return False
            at += 1
    return at == len(chosen)


@compiled
def emit(  # noqa: PLR0917 (compiled functions are called by position)
    codes_NKO: NDArray[np.uint64],
    orientation: int,
    radius: int,
    blocks: NDArray[np.uint64],
    chosen: NDArray[np.int64],
    turned: tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.int32]],
    upright: tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.int32]],
    packed: NDArray[np.int64],
) -> int:
    """Write the pairs that these buckets give first; return how many they are.

    `turned` and `upright` are `bucket_sort`s of kind 0. Pairs beyond the end of `packed` are
    counted and not written.
    """
    starts_i, codes_i, position_i = turned
    starts_j, codes_j, position_j = upright
    count = 0
    # Equal codes agree in all blocks and so belong to the first choice. The others skip them:
    # there their 0 bits, less 1, are the largest number of all.
    skipped = np.uint64(len(chosen) > 0 and chosen[-1] != len(chosen) - 1)
    limit = np.uint64(radius) - skipped
    for bucket in range(len(starts_i) - 1):
        low: Any = np.int64(starts_j[bucket])
        high = np.int64(starts_j[bucket + 1])
        for s in range(starts_i[bucket], starts_i[bucket + 1]):
            i, code = np.int64(position_i[s]), codes_i[s]
            while low < high and position_j[low] <= i:
                low += 1
            row = codes_j[low:high]
            # Most rows hold nothing: this loop has no branch and runs on vectors.
            near: Any = 0
            for t in range(row.size):
                near += np.int64(_bits(code ^ row[t]) - skipped <= limit)
            if near == 0:
                continue
            for t in range(row.size):
                differ = code ^ row[t]
                if _bits(differ) - skipped > limit:
                    continue
                if not _first_to_agree(differ, blocks, chosen):
                    continue
                j = np.int64(position_j[low + t])
                if _distance(codes_NKO, i, j, orientation) > radius:
                    continue
                least = _least_distance(codes_NKO, i, j, orientation, radius)
                if least < 0:
                    continue
                if count < len(packed):
                    packed[count] = (i << FIRST_SHIFT) | (j << SECOND_SHIFT) | least
                count += 1
    return count


@compiled
def unpack(
    packed_P: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Return first, second and distance of packed pairs."""
    n = len(packed_P)
    first_P, second_P = np.empty(n, np.int32), np.empty(n, np.int32)
    distance_P = np.empty(n, np.uint8)
    for p in range(n):
        first_P[p] = packed_P[p] >> FIRST_SHIFT
        second_P[p] = (packed_P[p] >> SECOND_SHIFT) & ((1 << 28) - 1)
        distance_P[p] = packed_P[p] & 127
    return first_P, second_P, distance_P
