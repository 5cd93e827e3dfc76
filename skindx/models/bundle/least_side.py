"""The smallest photo that a bundle accepts: no smaller than what it was calibrated on."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from skindx.data.manifest import Record, split_of
from skindx.models.bundle.provenance import LEAST_SIDE_PX, provenance_value
from skindx.models.bundle.spec import BundleSpec

RARE = 0.05
"""Share of the calibration images that may be smaller: too few to support an answer."""


def calibration_side(records: Sequence[Record]) -> dict[str, Any]:
    """Return, for the provenance, the shorter side that 95 % of calibration images reach.

    Empty for a dataset without calibration images.
    """
    sides = [min(record.width, record.height) for record in split_of(records, "calibration")]
    return {LEAST_SIDE_PX: int(np.quantile(sides, RARE, method="lower"))} if sides else {}


def least_side(spec: BundleSpec) -> int:
    """Return the pixels that the shorter side of a photo needs.

    That is what the smallest member sees, so that at least one network needs no enlarged photo;
    less only where calibration images themselves were smaller, since sets and temperatures were
    then fitted on enlarged ones.
    """
    seen = min(member.classifier.preprocess.margin_size for member in spec.members)
    checked = provenance_value(spec.provenance, LEAST_SIDE_PX)
    whole = isinstance(checked, int) and not isinstance(checked, bool) and checked > 0
    return min(seen, checked) if whole and isinstance(checked, int) else seen
