"""The parts that a bundle lacks because they could not be fitted, and why."""

from collections.abc import Sequence

from skindx.models.bundle.spec import BundleSpec
from skindx.models.calibration.urgent_risk import why_no_threshold
from skindx.models.ood.check import FEWEST
from skindx.taxonomy import SkinClass


def missing_parts(spec: BundleSpec, classes: Sequence[SkinClass]) -> list[str]:
    """Return a line for each such part; none for a bundle that is whole."""
    lines = []
    if spec.conformal is None:
        lines.append("no conformal sets: the dataset has no calibration images to fit them on")
    if spec.urgent_risk is None:
        lines.append(f"no threshold of the urgent risk: {why_no_threshold(classes)}")
    if spec.ood is None and spec.novelty is None:
        lines.append(
            "no check for photos unlike the training images (out of distribution): it takes "
            f"{FEWEST} calibration images, and training images that differ"
        )
    return lines
