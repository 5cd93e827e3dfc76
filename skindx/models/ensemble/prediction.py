"""The prediction of an ensemble for one image."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box

# C = classes, M = members


@dataclass(frozen=True, slots=True)
class OodResult:
    """The p-value of the out-of-distribution check; at `rate` and below the image is refused."""

    p_value: float
    rate: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Calibrated class probabilities of one image, and its lesion boxes.

    `probabilities_C` sums to 1 in the bundle's class order; `member_probabilities_MC` holds each
    member's own. `boxes` are pixels of the image as given, best first; None means that the
    bundle has no detector, () that the detector found nothing.
    """

    probabilities_C: NDArray[np.float64]
    member_probabilities_MC: NDArray[np.float64]
    boxes: tuple[Box, ...] | None = None
    whole_C: NDArray[np.float64] | None = None
    """The ensemble's probabilities by the whole image alone, where a box was looked at beside."""
    ood: OodResult | None = None
    """The out-of-distribution check; None where there is none, or where it was not asked."""
