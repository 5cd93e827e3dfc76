"""Timing that compares fairly: candidates take turns in the same run, medians with quartiles."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A median of `n` measurements; `spread` is their 25th and 75th percentile.

    In results with the headings MEANS: a mean of `n` trainings and its 95 % interval.
    """

    value: float
    unit: str
    n: int
    spread: tuple[float, float]


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[str, list[float]]:
    """Time every candidate once a round and return their seconds, `rounds` each.

    A slow minute of the machine then hits all of them, and the order turns by one each round so
    that no candidate always follows the same one. `warmup` rounds come first and are not timed.
    """
    clock = clock or time.perf_counter
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            candidates[name]()
            took = clock() - start
            if turn >= 0:
                seconds[name].append(took)
    return seconds


def median(samples: Sequence[float], unit: str) -> Figure:
    """Summarise at least two measurements."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Figure(middle, unit, len(samples), (low, high))


def ratio(ours: Sequence[float], other: Sequence[float]) -> Figure:
    """Return how many times faster `ours` is than `other`: the median of the ratios by round.

    Both are seconds of the same interleaved rounds; the result belongs under a key `_over_X`.
    """
    pairs = zip(ours, other, strict=True)
    return median([theirs / mine for mine, theirs in pairs], "×")
