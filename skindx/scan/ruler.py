"""The ruler on a photo: its ticks, their unit, and the scale that a person confirms.

On a ruler of millimetres every tenth tick is the longest and mostly every fifth between them is of
middle length; of half millimetres every twentieth and tenth; inches are halved four times. Each
hierarchy is fitted to the lengths of the ticks with its best start, and they are compared by the
Bayesian information criterion (Schwarz 1978). Nothing is used before a person confirms it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from skindx.core.errors import UserError
from skindx.scan.pixel_store import Bools, Floats, Ints, Pixels, ReadRegion
from skindx.scan.tick_candidates import searches
from skindx.scan.tick_rows import SHORT, TickRow, trace
from skindx.texts.catalogue import joined, text

# T = ticks

Division = Literal["millimetres", "half millimetres", "inches", "none"]

MM_PER_TICK: dict[Division, float] = {"millimetres": 1.0, "half millimetres": 0.5}
"""Millimetres between two ticks, for the divisions that give a scale."""

_HIERARCHIES: dict[Division, tuple[tuple[int, ...], ...]] = {
    # Steps from the longest ticks to the shortest: those of a step are the k-th, k % step == 0.
    "millimetres": ((10, 5, 1), (10, 1)),
    "half millimetres": ((20, 10, 2, 1), (20, 10, 1)),
    "inches": ((16, 8, 4, 2, 1), (8, 4, 2, 1), (4, 2, 1), (12, 6, 3, 1)),
    "none": ((1,), (5, 1), (2, 1)),
}
_NOISE = 0.15
"""Least error of a measured length, in periods."""
_LONGEST = 3.0
"""Longest tick in medians: a longer line runs into something else."""
_CLEARLY = 6.0
"""Difference of the criterion above which one hierarchy is strongly preferred."""
_LEAST_STEP = 0.4
"""Least difference in length to the ticks of the next level, in periods."""


@dataclass(frozen=True)
class RulerUnit:
    """Length that the ticks mark."""

    division: Division
    start: int
    """First of the longest ticks, from 0."""
    step: int
    """How many ticks later the next of the longest follows."""


def unit_of(lengths_T: Floats) -> RulerUnit | None:
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
    return RulerUnit(division, start, step)


def _fit(number_T: Ints, lengths_T: Floats, steps: tuple[int, ...]) -> tuple[float, int, int]:
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


def _levels(off_T: Ints, steps: tuple[int, ...]) -> Ints:
    """Return which step each tick belongs to, by its distance from a longest one."""
    level_T = np.full(len(off_T), len(steps) - 1)
    for level in range(len(steps) - 1, -1, -1):
        level_T[off_T % steps[level] == 0] = level
    return level_T


# T = ticks

_TRIED = 5
"""Number of places tried at each scale."""
_NORMAL = 1.96


@dataclass(frozen=True)
class Ruler:
    """A row of ticks with its unit."""

    row: TickRow
    unit: RulerUnit

    @property
    def mm_per_pixel(self) -> float:
        """Millimetres a pixel in the middle of the row of ticks."""
        return MM_PER_TICK[self.unit.division] / self.row.period

    @property
    def relative_error(self) -> float:
        """Half the width of a 95 % interval, as a share of `mm_per_pixel`.

        Ticks are found with some jitter; perspective makes them nearer to each other at one end,
        and lesions may be as far from the camera as either end.
        """
        row, ticks = self.row, len(self.row.ticks_T2)
        # Standard error of the slope of a line through this many equidistant points.
        slope = row.jitter / row.period * np.sqrt(12 / ticks**3)
        ends = abs(row.period_last - row.period_first) / 2 / row.period
        return float(np.hypot(_NORMAL * slope, ends))

    @property
    def longest(self) -> Bools:
        """Positions of the longest ticks."""
        number_T = np.arange(len(self.row.ticks_T2))
        longest_T: Bools = (number_T - self.unit.start) % self.unit.step == 0
        return longest_T

    @property
    def sentence(self) -> str:
        """The result and what a person must check in the drawing."""
        row = {"ticks": len(self.row.ticks_T2), "period": round(self.row.period, 1)}
        scale, error = float(f"{self.mm_per_pixel:.4g}"), round(100 * self.relative_error, 1)
        return joined(
            text("ruler_found", **row, unit=self.unit.division),
            text("ruler_scale", scale=scale, error=error),
            text("ruler_check"),
        )


def find_ruler(read: ReadRegion, width: int, height: int, name: str) -> Ruler:
    """Return the ruler on the photo `name`, of which nothing is used before a person confirms it.

    Raises UserError where no ruler is found, and where the unit of its ticks is not clear.
    """
    unclear: list[tuple[TickRow, RulerUnit | None]] = []
    for candidates in searches(read, width, height):
        for candidate in candidates[:_TRIED]:
            row = trace(read, width, height, candidate)
            if row is None:
                continue
            unit = unit_of(row.lengths_T)
            if unit and unit.division in MM_PER_TICK:
                return Ruler(row, unit)
            unclear.append((row, unit))
    if not unclear:
        none = text("ruler_none", name=name)
        raise UserError(joined(none, text("ruler_none_needs"), text("ruler_again")))
    row, unit = max(unclear, key=lambda item: len(item[0].ticks_T2))
    lines = {"name": name, "ticks": len(row.ticks_T2), "period": round(row.period, 1)}
    if unit and unit.division == "inches":
        raise UserError(joined(text("ruler_inches", **lines), text("ruler_instead")))
    raise UserError(
        joined(
            text("ruler_unclear", **lines),
            text("ruler_unclear_why"),
            text("ruler_instead"),
        )
    )


_LONGEST_SIDE = 2400
_THIN, _THICK, _RIM = (0, 70, 190), (213, 43, 30), (255, 255, 255)


def confirmation_image(read: ReadRegion, width: int, height: int, ruler: Ruler) -> Pixels:
    """Return the part of the photo with the ruler, with a line on each of its ticks.

    uint8 RGB with at most 2,400 pixels along the longer side; every line begins where its tick
    does and points away from the ruler.
    """
    import cv2

    row = ruler.row
    room = 12 * row.period
    low = np.clip(np.floor(row.ticks_T2.min(axis=0) - room), 0, (width, height)).astype(int)
    high = np.clip(np.ceil(row.ticks_T2.max(axis=0) + room), 0, (width, height)).astype(int)
    scale = min(1.0, _LONGEST_SIDE / int((high - low).max()))
    image_HW3 = np.ascontiguousarray(read(low[0], low[1], high[0], high[1], scale)).copy()
    # A ruler far away is enlarged: neighbouring lines must be distinguishable.
    enlarged = max(1, min(round(8 / (row.period * scale)), _LONGEST_SIDE // max(image_HW3.shape)))
    image_HW3 = cv2.resize(
        image_HW3, None, fx=enlarged, fy=enlarged, interpolation=cv2.INTER_NEAREST
    )
    scale *= enlarged
    across = np.array(row.across) * row.period
    tops = []
    for place, longest in zip(row.ticks_T2, ruler.longest, strict=True):
        ends = place - (5 if longest else 2.5) * across, place - 0.3 * across
        top, foot = (np.rint((end - low) * scale).astype(int).tolist() for end in ends)
        colour = _THICK if longest else _THIN
        cv2.line(image_HW3, top, foot, _RIM, 7 if longest else 3, cv2.LINE_AA)
        cv2.line(image_HW3, top, foot, colour, 3 if longest else 1, cv2.LINE_AA)
        tops += [top] if longest else []
    middle = np.rint(np.mean(tops[:2], axis=0)).astype(int).tolist()
    size = max(0.5, row.period * scale / 16)
    for colour, thick in ((_RIM, 5), (_THICK, 2)):
        cv2.putText(image_HW3, "1 cm", middle, 0, size, colour, thick, cv2.LINE_AA)
    drawn_HW3: Pixels = image_HW3
    return drawn_HW3


_LEAST, _MOST = 0.0005, 10.0
"""Millimetres in a pixel: of a dermatoscope at 50 megapixels, and of a person as a small figure."""

Confirm = Callable[[Ruler, Pixels], bool]
"""Shows a person the sentence of a ruler and the image with its ticks drawn; True: it is right."""


@dataclass(frozen=True)
class Scale:
    """How large a pixel is."""

    mm_per_pixel: float
    source: Literal["given", "ruler", "header"]
    relative_error: float | None = None
    """Half the width of a 95 % interval as a share; None: unknown."""


def given_scale(mm_per_pixel: float) -> Scale:
    """Return the scale that a user gave. Raises UserError for one that no photo has."""
    if not (math.isfinite(mm_per_pixel) and _LEAST <= mm_per_pixel <= _MOST):
        raise UserError(
            joined(
                text("scale_range", scale=mm_per_pixel, least=_LEAST, most=_MOST),
                text("scale_range_do"),
            )
        )
    return Scale(mm_per_pixel, "given")


def scale_from_ruler(
    read: ReadRegion, width: int, height: int, *, name: str, confirm: Confirm
) -> Scale:
    """Find the ruler on the photo `name` and let a person confirm it; it is never guessed.

    Raises UserError without a ruler, for one without a clear unit, and where the person says no.
    """
    ruler = find_ruler(read, width, height, name)
    if not confirm(ruler, confirmation_image(read, width, height, ruler)):
        raise UserError(joined(text("ruler_refused", name=name), text("ruler_refused_do")))
    return Scale(ruler.mm_per_pixel, "ruler", ruler.relative_error)
