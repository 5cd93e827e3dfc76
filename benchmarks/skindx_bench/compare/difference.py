"""Which differences between two measured figures are real.

A figure is a median of n rounds with its quartiles. Its notch is median ± 1.57 (q75 - q25) / √n:
two medians whose notches do not meet differ at about the 95 % level (McGill, Tukey and Larsen 1978,
"Variations of Box Plots", The American Statistician 32, section 7). Where a bench wrote a mean with
its 95 % interval, that interval is taken as it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOTCH = 1.57

FEWEST = 3
"""Rounds below which quartiles say too little: then no difference is called real."""


@dataclass(frozen=True)
class Difference:
    """The second figure over the first one, and whether the two differ by more than chance."""

    ratio: float
    interval: tuple[float, float]
    real: bool


def interval(figure: Mapping[str, Any], *, means: bool) -> tuple[float, float]:
    """Return about 95 % for a figure's value: the notch of a median, the interval of a mean."""
    low, high = figure["spread"]
    if means:
        return float(low), float(high)
    half = NOTCH * (high - low) / math.sqrt(figure["n"])
    return figure["value"] - half, figure["value"] + half


def difference(
    first: Mapping[str, Any], second: Mapping[str, Any], *, means: tuple[bool, bool]
) -> Difference | None:
    """Compare two figures of one key; None where a ratio means nothing.

    The interval of the ratio divides the ends of the intervals, so that it is a wide one.
    """
    if first["unit"] != second["unit"] or first["value"] <= 0 or second["value"] <= 0:
        return None
    low_a, high_a = interval(first, means=means[0])
    low_b, high_b = interval(second, means=means[1])
    ends = (low_b / high_a, high_b / low_a if low_a > 0 else math.inf)
    enough = min(first["n"], second["n"]) >= FEWEST
    return Difference(
        second["value"] / first["value"], ends, enough and (low_b > high_a or low_a > high_b)
    )


def has_means(written: Mapping[str, Any]) -> bool:
    """Return whether a JSON's spreads are intervals of means and not quartiles."""
    return "headings" in written
