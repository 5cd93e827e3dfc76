"""The compiled loops of `candidates`; importing this module imports numba."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from skindx.core.compiled_loops import compiled

# N = images, P, Q = points of the first and the second images, L = leading components,
# B = cells, T = probes, X = chiralities, M = matches, F = rows that are returned


ANGLES, SCALES = 16, 13
"""Bins of 22.5 degrees, and of half an octave; neighbours are counted together."""


@compiled
def vote(  # noqa: PLR0912, PLR0917 (compiled functions are called by position)
    same_images: bool,
    starts_N: NDArray[np.int64],
    codes_PL: NDArray[np.int8],
    probes_PXT: NDArray[np.uint16],
    angle_P: NDArray[np.int16],
    scale_P: NDArray[np.int16],
    signs_L: NDArray[np.int8],
    cells_B: NDArray[np.int64],
    image_Q: NDArray[np.int32],
    codes_QL: NDArray[np.int8],
    angle_Q: NDArray[np.int16],
    scale_Q: NDArray[np.int16],
    second_count: int,
    radius: int,
    least: int,
    rows_F3: NDArray[np.int64],
) -> int:
    """Let the points of N images vote for `second_count` images whose points Q lie sorted by cell.

    A point of another image in one of the probed cells whose code lies within `radius` (squared)
    votes for that image, for a turn and for a change of size; a point has one vote an image. Rows
    (first, second, votes) of those with at least `least` votes that agree go into `rows_F3`; their
    count is returned, also beyond its length. With `same_images` only a second after the first
    counts. Angles are in 1/16 of a bin, scales in 1/2 octave.
    """
    histogram = np.zeros((second_count, 2, ANGLES, SCALES), np.uint8)
    voter = np.full((second_count, 2), -1, np.int64)
    total = np.zeros((second_count, 2), np.int32)
    touched = np.empty(second_count, np.int32)
    code_L = np.empty(codes_PL.shape[1], np.int32)
    width = codes_PL.shape[1]
    filled = 0
    for first in range(len(starts_N) - 1):
        count = 0
        for point in range(starts_N[first], starts_N[first + 1]):
            for mirrored in range(2):
                for k in range(width):
                    value = np.int32(codes_PL[point, k])
                    code_L[k] = value * signs_L[k] if mirrored else value
                angle = 128 - angle_P[point] if mirrored else angle_P[point]
                for probe in range(probes_PXT.shape[2]):
                    cell = np.int64(probes_PXT[point, mirrored, probe])
                    for at in range(cells_B[cell], cells_B[cell + 1]):
                        second = image_Q[at]
                        if (same_images and second <= first) or voter[second, mirrored] == point:
                            continue
                        far = np.int32(0)
                        for k in range(width):
                            step = code_L[k] - np.int32(codes_QL[at, k])
                            far += step * step
                        if far > radius:
                            continue
                        turn = ((angle_Q[at] - angle + 512) & 255) >> 4
                        grown = scale_Q[at] - scale_P[point] + SCALES // 2
                        if grown < 0 or grown >= SCALES:
                            continue
                        voter[second, mirrored] = point
                        if total[second, 0] + total[second, 1] == 0:
                            touched[count] = second
                            count += 1
                        total[second, mirrored] += 1
                        if histogram[second, mirrored, turn, grown] < 255:
                            histogram[second, mirrored, turn, grown] += 1
        for k in range(count):
            second = touched[k]
            best = 0
            for mirrored in range(2):
                if total[second, mirrored] >= least:
                    for turn in range(ANGLES):
                        for grown in range(SCALES - 1):
                            votes = 0
                            for a in range(2):
                                for s in range(2):
                                    votes += int(
                                        histogram[second, mirrored, (turn + a) % ANGLES, grown + s]
                                    )
                            best = max(best, votes)
                if total[second, mirrored]:
                    histogram[second, mirrored] = 0
                    total[second, mirrored] = 0
                    voter[second, mirrored] = -1
            if best >= least:
                if filled < len(rows_F3):
                    rows_F3[filled, 0] = first
                    rows_F3[filled, 1] = second
                    rows_F3[filled, 2] = best
                filled += 1
    return filled


LARGEST = 6.0
APART = 5.0
"""Pixels between two points that count as two places."""
_GROWN = 2.0
_TURNED = 45.0
"""Factor and degrees by which size and direction of a match may differ from those of another."""


@compiled
def likeness(  # noqa: PLR0917 (compiled functions are called by position)
    points_M4: NDArray[np.float32],
    matched_M4: NDArray[np.float32],
    close_M: NDArray[np.float64],
    mirrored_width: int,
    near: float,
    least: int,
) -> float:
    """Return the largest agreement that any match has; 0 where fewer than `least` matches agree.

    Each match defines a similarity transform. A match agrees with it, as it does with itself, if
    the transform maps its point to within `near` pixels of the matched one, with a like change of
    size and direction; it adds the cube of the closeness of its two codes. With a `mirrored_width`
    the first image is mirrored.
    """
    from_M4, to_M4 = points_M4.astype(np.float64), matched_M4.astype(np.float64)
    if mirrored_width:
        from_M4[:, 0] = mirrored_width - 1 - from_M4[:, 0]
        from_M4[:, 3] = 180 - from_M4[:, 3]
    best = 0.0
    for m in range(len(from_M4)):
        grown = to_M4[m, 2] / from_M4[m, 2]
        turned = to_M4[m, 3] - from_M4[m, 3]
        a, b = grown * np.cos(turned * np.pi / 180), grown * np.sin(turned * np.pi / 180)
        reach = (near * max(1.0, grown)) ** 2
        count, total = 0, 0.0
        for k in range(len(from_M4)):
            x, y = from_M4[k, 0] - from_M4[m, 0], from_M4[k, 1] - from_M4[m, 1]
            if k != m and x * x + y * y < APART * APART:
                continue
            u = a * x - b * y + to_M4[m, 0] - to_M4[k, 0]
            v = b * x + a * y + to_M4[m, 1] - to_M4[k, 1]
            more = to_M4[k, 2] / (from_M4[k, 2] * grown)
            twist = abs((to_M4[k, 3] - from_M4[k, 3] - turned + 900) % 360 - 180)
            if u * u + v * v > reach or more > _GROWN or more * _GROWN < 1 or twist > _TURNED:
                continue
            count += 1
            total += close_M[k] ** 3
        if count >= least:
            best = max(best, total)
    return best


@compiled
def grouped(pair_M: NDArray[np.int64], pairs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the matches of each pair start, and where the last ends; and their order."""
    starts = np.zeros(pairs + 1, np.int64)
    for pair in pair_M:
        starts[pair + 1] += 1
    starts = np.cumsum(starts)
    order_M, free = np.empty(len(pair_M), np.int64), starts.copy()
    for m in range(len(pair_M)):
        order_M[free[pair_M[m]]] = m
        free[pair_M[m]] += 1
    return starts, order_M


@compiled
def compare(  # noqa: PLR0912, PLR0917 (compiled functions are called by position)
    same_images: bool,
    starts_N: NDArray[np.int64],
    codes_PL: NDArray[np.int8],
    probes_PXT: NDArray[np.uint16],
    points_P4: NDArray[np.float32],
    widths_N: NDArray[np.int64],
    signs_L: NDArray[np.int8],
    cells_B: NDArray[np.int64],
    image_Q: NDArray[np.int32],
    codes_QL: NDArray[np.int8],
    points_Q4: NDArray[np.float32],
    second_count: int,
    radius: int,
    near: float,
    least: int,
    rows_F3: NDArray[np.int64],
) -> int:
    """Compare the points of N images with those of `second_count` images, which lie sorted by cell.

    A point matches in each other image the nearest code within `radius` (squared) in the probed
    cells. Rows (first, second, 1000 x agreement) go into `rows_F3`; their count is returned, also
    beyond its length. With `same_images` only a second after the first counts.
    """
    voter = np.full((second_count, 2), -1, np.int64)
    slot = np.zeros((second_count, 2), np.int64)
    point_M, at_M = np.empty(1 << 14, np.int64), np.empty(1 << 14, np.int64)
    pair_M, far_M = np.empty(1 << 14, np.int64), np.empty(1 << 14, np.int64)
    code_L = np.empty(codes_PL.shape[1], np.int32)
    filled = 0
    for first in range(len(starts_N) - 1):
        count = 0
        for point in range(starts_N[first], starts_N[first + 1]):
            for mirrored in range(2):
                for k in range(len(code_L)):
                    value = np.int32(codes_PL[point, k])
                    code_L[k] = value * signs_L[k] if mirrored else value
                for probe in range(probes_PXT.shape[2]):
                    cell = np.int64(probes_PXT[point, mirrored, probe])
                    for at in range(cells_B[cell], cells_B[cell + 1]):
                        second = image_Q[at]
                        if same_images and second <= first:
                            continue
                        far = np.int32(0)
                        for k in range(len(code_L)):
                            step = code_L[k] - np.int32(codes_QL[at, k])
                            far += step * step
                        grown = points_Q4[at, 2] / points_P4[point, 2]
                        if far > radius or grown > LARGEST or grown * LARGEST < 1:
                            continue
                        if voter[second, mirrored] == point:
                            earlier = slot[second, mirrored]
                            if far < far_M[earlier]:
                                far_M[earlier], at_M[earlier] = far, at
                            continue
                        if count == len(point_M):
                            point_M, at_M = np.append(point_M, point_M), np.append(at_M, at_M)
                            pair_M, far_M = np.append(pair_M, pair_M), np.append(far_M, far_M)
                        voter[second, mirrored], slot[second, mirrored] = point, count
                        point_M[count], at_M[count], far_M[count] = point, at, far
                        pair_M[count] = 2 * second + mirrored
                        count += 1
        starts, order_M = grouped(pair_M[:count], 2 * second_count)
        for m in range(count):
            voter[pair_M[m] >> 1, pair_M[m] & 1] = -1
        for second in range(second_count):
            best = 0.0
            for mirrored in range(2):
                these = order_M[starts[2 * second + mirrored] : starts[2 * second + mirrored + 1]]
                if len(these) < least:
                    continue
                total = likeness(
                    points_P4[point_M[these]],
                    points_Q4[at_M[these]],
                    1 - far_M[these] / radius,
                    widths_N[first] if mirrored else 0,
                    near,
                    least,
                )
                best = max(best, total)
            if best > 0:
                if filled < len(rows_F3):
                    rows_F3[filled, 0], rows_F3[filled, 1] = first, second
                    rows_F3[filled, 2] = np.int64(1000 * best + 0.5)
                filled += 1
    return filled


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
