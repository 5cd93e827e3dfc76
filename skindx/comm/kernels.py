"""Compiled loops of the sparse exchanges, for gradients in a CPU's memory."""

import numpy as np
from numpy.typing import NDArray

from skindx.core.compiled_loops import compiled

# B = elements of a block

_BLOCK = 128
"""Elements that share one test: at usual densities seven of eight blocks hold nothing large."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)


@compiled
def add_and_find(  # noqa: PLR0917 - two vectors, a threshold, and room for what is found
    gradient: NDArray[np.float32],
    bits: NDArray[np.int32],
    residual: NDArray[np.float32],
    threshold: np.int32,
    result: NDArray[np.int32],
    values: NDArray[np.float32],
) -> tuple[int, bool]:
    """Add `residual` to `gradient` in place, and find what is at least `threshold` in magnitude.

    `bits` is the gradient's own memory as integers, and `threshold` the bits of a float >= 0.
    Writes the first indices into `result`, in order, and their elements into `values`; returns how
    many there are in all, and whether all elements of the sum are finite.

    IEEE 754 magnitudes are ordered as their bits are, infinity and NaN above all numbers. A maximum
    of integers is one that compilers vectorise on every processor (a maximum of floats is not,
    because of NaN), so the time is that of one pass over memory.
    """
    size, room = gradient.size, result.size
    count, largest = 0, np.int32(0)
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        # Slices, since indices that start at 0 need no test for negative ones.
        sum_B, residual_B, bits_B = gradient[start:end], residual[start:end], bits[start:end]
        for i in range(sum_B.size):
            sum_B[i] += residual_B[i]
        most = np.int32(0)
        for i in range(bits_B.size):
            most = max(most, bits_B[i] & _MAGNITUDE)
        largest = max(largest, most)
        if most >= threshold:
            for i in range(bits_B.size):
                if bits_B[i] & _MAGNITUDE >= threshold:
                    if count < room:
                        result[count], values[count] = start + i, sum_B[i]
                    count += 1
    return count, bool(largest < _INFINITY)


@compiled
def merge_sorted(  # noqa: PLR0917 - two sparse vectors, and room for their sum
    first_at: NDArray[np.int32],
    first: NDArray[np.float32],
    second_at: NDArray[np.int32],
    second: NDArray[np.float32],
    at: NDArray[np.int32],
    values: NDArray[np.float32],
) -> int:
    """Add two sparse vectors, indices ascending in each; return how many elements the sum has."""
    i, j, n = 0, 0, 0
    while i < first_at.size or j < second_at.size:
        if j == second_at.size or (i < first_at.size and first_at[i] < second_at[j]):
            at[n], values[n] = first_at[i], first[i]
            i += 1
        elif i == first_at.size or second_at[j] < first_at[i]:
            at[n], values[n] = second_at[j], second[j]
            j += 1
        else:
            at[n], values[n] = first_at[i], first[i] + second[j]
            i += 1
            j += 1
        n += 1
    return n


@compiled
def keep_largest(
    values: NDArray[np.float32], threshold: np.float32, ties: int, kept: NDArray[np.bool_]
) -> None:
    """Mark what is above `threshold` in magnitude, and the first `ties` that are equal to it."""
    for i in range(values.size):
        magnitude = abs(values[i])
        equal = magnitude == threshold and ties > 0
        kept[i] = magnitude > threshold or equal
        if equal:
            ties -= 1


@compiled
def split_by(  # noqa: PLR0917 - a sparse vector, and room for its two parts
    at: NDArray[np.int32],
    values: NDArray[np.float32],
    kept: NDArray[np.bool_],
    kept_at: NDArray[np.int32],
    kept_values: NDArray[np.float32],
    other_at: NDArray[np.int32],
    other_values: NDArray[np.float32],
) -> int:
    """Copy what is marked to one place and the rest to another; return how many are marked.

    Each place has room for all and one more. Written without a branch: which elements are kept
    cannot be foreseen, and four times as fast as indexing with the mask.
    """
    inside, outside = 0, 0
    for i in range(at.size):
        kept_at[inside], kept_values[inside] = at[i], values[i]
        other_at[outside], other_values[outside] = at[i], values[i]
        mark = int(kept[i])
        inside += mark
        outside += 1 - mark
    return inside
