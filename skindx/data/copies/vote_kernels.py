"""The compiled loop of `votes`; importing this module imports numba."""

import numpy as np
from numpy.typing import NDArray

from skindx.core.compiled_loops import compiled

# N = images, P = points, L = leading components, B = cells, T = probes, X = chiralities

ANGLES, SCALES = 16, 13
"""Bins of 22.5 degrees, and of half an octave; neighbours are counted together."""


@compiled
def vote(  # noqa: PLR0912, PLR0917 (compiled functions are called by position)
    own: bool,
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
    others: int,
    radius: int,
    least: int,
    found: NDArray[np.int64],
) -> int:
    """Let the points of N images vote for `others` images whose points Q lie sorted by cell.

    A point of another image in one of the probed cells whose code lies within `radius` (squared)
    votes for that image, for a turn and for a change of size; a point has one vote an image. Rows
    (first, second, votes) of those with at least `least` votes that agree go into `found`; their
    count is returned, also beyond its length. `own`: the images are the same, and only a second
    after the first counts. Angles are in 1/16 of a bin, scales in 1/2 octave.
    """
    histogram = np.zeros((others, 2, ANGLES, SCALES), np.uint8)
    voter = np.full((others, 2), -1, np.int64)
    total = np.zeros((others, 2), np.int32)
    touched = np.empty(others, np.int32)
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
                        if (own and second <= first) or voter[second, mirrored] == point:
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
                if filled < len(found):
                    found[filled, 0] = first
                    found[filled, 1] = second
                    found[filled, 2] = best
                filled += 1
    return filled
