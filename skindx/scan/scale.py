"""Millimetres on a photo: given by the user, or read from a ruler and confirmed by a person."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.scan.pixels import ReadRegion
from skindx.scan.ruler.drawing import confirmation_image
from skindx.scan.ruler.find import Ruler, find_ruler

_LEAST, _MOST = 0.0005, 10.0
"""Millimetres in a pixel: of a dermatoscope at 50 megapixels, and of a person as a small figure."""

Confirm = Callable[[Ruler, NDArray[np.uint8]], bool]
"""Shows a person the sentence of a ruler and the image with its ticks drawn; True: it is right."""


@dataclass(frozen=True)
class Scale:
    """How large a pixel is."""

    mm_per_pixel: float
    source: Literal["given", "ruler"]
    relative_error: float | None = None
    """Half the width of a 95 % interval as a share; None: unknown."""


def given_scale(mm_per_pixel: float) -> Scale:
    """Return the scale that a user gave. Raises UserError for one that no photo has."""
    if not (math.isfinite(mm_per_pixel) and _LEAST <= mm_per_pixel <= _MOST):
        raise UserError(
            f"--scale {mm_per_pixel:g} is not from {_LEAST} to {_MOST:g} mm per pixel; divide a "
            f"length in millimetres by how many pixels it has in the photo."
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
        raise UserError(
            f"the ruler of {name} was not confirmed; measure it and give --scale MM_PER_PIXEL, or "
            f"go on without --ruler in pixels."
        )
    return Scale(ruler.mm_per_pixel, "ruler", ruler.relative_error)
