"""Gates without a model: what is wrong with a photo, by its pixels alone; one file for one gate.

`python -m skindx.evaluation.gates` measures their thresholds on real photos.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.gates.blur import blurred
from skindx.imaging.gates.gate import Fault, Finding, Reduced
from skindx.imaging.gates.light import badly_lit
from skindx.imaging.gates.skin import no_skin

__all__ = ["GATES", "Fault", "Finding", "Gate", "Reduced", "inspect"]

Gate = Literal["light", "no-skin", "blur"]

GATES: dict[Gate, Callable[[Reduced], Finding | None]] = {
    "light": badly_lit,
    "no-skin": no_skin,
    "blur": blurred,
}
"""In this order, since a dark photo also counts as blurred and the advice would not help."""


def inspect(pixels_HWC: NDArray[np.uint8]) -> list[tuple[Gate, Finding]]:
    """Return what the gates find in a photo, H x W x 3 RGB uint8; a fatal finding ends the list."""
    reduced = Reduced.of(pixels_HWC)
    found: list[tuple[Gate, Finding]] = []
    for name, gate in GATES.items():
        finding = gate(reduced)
        if finding:
            found.append((name, finding))
            if finding.fatal:
                break
    return found
