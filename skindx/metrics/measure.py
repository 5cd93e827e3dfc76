"""A figure of images that a bootstrap can compute again when it weights their groups."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from skindx.metrics.inputs import Floats, Interval, Ints

# N = images, G = groups, D = bootstrap draws

ClosedForm = Callable[[Ints, float], Interval]
"""Turns groups_N and a level into the figure with its interval."""

Redraw = Callable[[Floats], Floats]
"""Turns weights_DG, how often each draw holds each group, into the figure's values_D."""


class Measure(ABC):
    """A figure of N images.

    `low` and `high` are the least and the greatest value that it can take; `biased` says that a
    sample's value, and more so a draw's, stands off the population's to one side. `strata` is the
    class of each image where the figure is a mean over classes.
    """

    low: float
    high: float
    biased: bool
    closed_form: ClosedForm | None = None
    strata: Ints | None = None

    @property
    @abstractmethod
    def images(self) -> int:
        """How many images it was made from."""

    @abstractmethod
    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        """Prepare for draws of `groups` groups; `index_N` holds the group of each image."""

    @property
    def value(self) -> float:
        """The figure of the images as they are; NaN where it is not defined."""
        whole = self.redraw(np.zeros(self.images, dtype=np.intp), 1)
        return float(whole(np.ones((1, 1)))[0])

    def __sub__(self, other: "Measure") -> "Difference":
        """Return the difference of two figures of the same images, in the same order."""
        if self.images != other.images:
            raise ValueError(
                f"a paired difference needs the same images, not {self.images} and {other.images}"
            )
        return Difference(self, other)


@dataclass(frozen=True, slots=True)
class Difference(Measure):
    """One figure minus another, both of the same draw."""

    first: Measure
    second: Measure

    @property
    def low(self) -> float:  # type: ignore[override]
        """The least difference there can be."""
        return self.first.low - self.second.high

    @property
    def high(self) -> float:  # type: ignore[override]
        """The greatest difference there can be."""
        return self.first.high - self.second.low

    @property
    def biased(self) -> bool:  # type: ignore[override]
        """Whether one of the two is."""
        return self.first.biased or self.second.biased

    @property
    def images(self) -> int:
        """How many images both were made from."""
        return self.first.images

    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        """Prepare both for the same draws."""
        first, second = (measure.redraw(index_N, groups) for measure in (self.first, self.second))
        return lambda weights_DG: first(weights_DG) - second(weights_DG)
