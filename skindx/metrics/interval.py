"""A figure and how sure it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and the interval around it; `low` and `high` are NaN when nothing bounds it."""

    value: float
    low: float
    high: float
