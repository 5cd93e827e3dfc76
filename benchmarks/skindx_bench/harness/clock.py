"""Figures of interleaved rounds: medians with quartiles, and how many times faster."""

import statistics
from collections.abc import Sequence
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
