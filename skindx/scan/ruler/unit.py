"""The unit of a ruler's ticks, from which of them are longer.

On a ruler of millimetres every tenth tick is the longest and mostly every fifth between them is of
middle length; of half millimetres every twentieth and tenth; inches are halved four times. Each
hierarchy is fitted to the lengths of the ticks with its best start, and they are compared by the
Bayesian information criterion (Schwarz 1978).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skindx.scan.ruler.trace import SHORT

# T = ticks

Division = Literal["millimetres", "half millimetres", "inches", "none"]

MM_PER_TICK: dict[Division, float] = {"millimetres": 1.0, "half millimetres": 0.5}
"""Of the divisions that give a scale."""

_HIERARCHIES: dict[Division, tuple[tuple[int, ...], ...]] = {
    # From which ticks are the longest to which are the shortest: the k-th with k % step == 0.
    "millimetres": ((10, 5, 1), (10, 1)),
    "half millimetres": ((20, 10, 2, 1), (20, 10, 1)),
    "inches": ((16, 8, 4, 2, 1), (8, 4, 2, 1), (4, 2, 1), (12, 6, 3, 1)),
    "none": ((1,), (5, 1), (2, 1)),
}
_NOISE = 0.15
"""Periods: lengths are not measured better than this."""
_LONGEST = 3.0
"""Medians: a line that is longer runs into something else."""
_CLEARLY = 6.0
"""Difference of the criterion from which one hierarchy is strongly preferred."""
_LEAST_STEP = 0.4
"""Periods by which ticks are longer than those of the next level, at least."""


@dataclass(frozen=True)
class Unit:
    """Length that the ticks mark."""

    division: Division
    start: int
    """First of the longest ticks, from 0."""
    step: int
    """How many ticks later the next of the longest follows."""


def unit_of(lengths_T: NDArray[np.float64]) -> Unit | None:
    """Return the unit that the ticks' lengths (in periods) show; None: they are ambiguous.

    The division is "none" where all ticks are of one length, or only every second or fifth is
    longer.
    """
    number_T = np.flatnonzero(lengths_T > SHORT * np.median(lengths_T))
    lengths_T = np.minimum(lengths_T[number_T], _LONGEST * np.median(lengths_T))
    fits = [
        (*_fit(number_T, lengths_T, steps), division)
        for division, hierarchies in _HIERARCHIES.items()
        for steps in hierarchies
    ]
    criterion, start, step, division = min(fits, key=lambda fit: fit[0])
    rest = [fit[0] for fit in fits if fit[3] != division]
    if min(rest) - criterion < _CLEARLY:
        return None
    return Unit(division, start, step)


def _fit(
    number_T: NDArray[np.int64], lengths_T: NDArray[np.float64], steps: tuple[int, ...]
) -> tuple[float, int, int]:
    """Return the criterion with the best start, that start, and the largest step."""
    n, largest = len(lengths_T), steps[0]
    best = (np.inf, 0)
    for start in range(largest):
        level_T = _levels(number_T - start, steps)
        means = [lengths_T[level_T == k].mean() for k in range(len(steps)) if (level_T == k).any()]
        # Two of the longest must be seen, and each level must be shorter than the one before.
        complete = len(means) == len(steps) and (level_T == 0).sum() >= 2
        if not complete or any(a - b < _LEAST_STEP for a, b in pairwise(means)):
            continue
        error = float(((lengths_T - np.array(means)[level_T]) ** 2).mean()) + _NOISE**2
        best = min(best, (error, start))
    if not np.isfinite(best[0]):
        return np.inf, 0, largest
    choices = np.log(largest)  # the start is a parameter too: so many were tried
    return n * float(np.log(best[0])) + len(steps) * np.log(n) + 2 * choices, best[1], largest


def _levels(off_T: NDArray[np.int64], steps: tuple[int, ...]) -> NDArray[np.int64]:
    """Return which step each tick belongs to, by its distance from a longest one."""
    level_T = np.full(len(off_T), len(steps) - 1)
    for level in range(len(steps) - 1, -1, -1):
        level_T[off_T % steps[level] == 0] = level
    return level_T
