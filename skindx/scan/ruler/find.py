"""The ruler on a photo and the scale it gives, for a person to confirm."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.scan.pixels import ReadRegion
from skindx.scan.ruler.candidates import searches
from skindx.scan.ruler.trace import TickRow, trace
from skindx.scan.ruler.unit import MM_PER_TICK, Unit, unit_of

# T = ticks

_TRIED = 5
"""Places at each scale."""
_NORMAL = 1.96
_INSTEAD = "measure it and give --scale MM_PER_PIXEL"


@dataclass(frozen=True)
class Ruler:
    """A row of ticks with its unit."""

    row: TickRow
    unit: Unit

    @property
    def mm_per_tick(self) -> float:
        """Distance between two ticks on the ruler."""
        return MM_PER_TICK[self.unit.division]

    @property
    def mm_per_pixel(self) -> float:
        """In the middle of the row of ticks."""
        return self.mm_per_tick / self.row.period

    @property
    def relative_error(self) -> float:
        """Half the width of a 95 % interval, as a share of `mm_per_pixel`.

        Ticks are found with some jitter; perspective makes them nearer to each other at one end,
        and lesions may be as far from the camera as either end.
        """
        row, ticks = self.row, len(self.row.ticks_T2)
        # Of the slope of a line through so many points at equal distances.
        slope = row.jitter / row.period * np.sqrt(12 / ticks**3)
        ends = abs(row.period_last - row.period_first) / 2 / row.period
        return float(np.hypot(_NORMAL * slope, ends))

    @property
    def longest(self) -> NDArray[np.bool_]:
        """Positions of the longest ticks."""
        number_T = np.arange(len(self.row.ticks_T2))
        longest_T: NDArray[np.bool_] = (number_T - self.unit.start) % self.unit.step == 0
        return longest_T

    @property
    def sentence(self) -> str:
        """The result and what a person must check in the drawing."""
        scale, error = self.mm_per_pixel, self.relative_error
        return (
            f"A ruler with {len(self.row.ticks_T2)} ticks was found, {self.row.period:.1f} pixels "
            f"apart, divided in {self.unit.division}: {scale:.4g} mm per pixel, "
            f"± {100 * error:.1f} %, where the skin is as far from the camera as the ruler. "
            f"Check that every thin line lies on a tick and that the thick ones are 1 cm apart."
        )


def find_ruler(read: ReadRegion, width: int, height: int, name: str) -> Ruler:
    """Return the ruler on the photo `name`, of which nothing is used before a person confirms it.

    Raises UserError where no ruler is found, and where the unit of its ticks is not clear.
    """
    unclear: list[tuple[TickRow, Unit | None]] = []
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
        raise UserError(
            f"{name} shows no ruler that can be read: at least two centimetres of it must be in "
            f"focus, with its millimetres at least 3 pixels apart; or {_INSTEAD}."
        )
    row, unit = max(unclear, key=lambda item: len(item[0].ticks_T2))
    ticks = f"{name} shows {len(row.ticks_T2)} lines {row.period:.1f} pixels apart"
    if unit and unit.division == "inches":
        raise UserError(f"{ticks}, divided as inches are, not as millimetres; {_INSTEAD}.")
    raise UserError(
        f"{ticks}, but not that every tenth is longer, as on a ruler of millimetres, so their unit "
        f"is unknown; if it is a ruler, {_INSTEAD}."
    )
