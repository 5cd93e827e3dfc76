"""The out-of-distribution check of bundles of version 0.1: `novelty` in the index.

Newer bundles have `ood` instead, see `skindx.models.ood`.
"""

from pathlib import Path

import numpy as np
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.models.ood.check import FEWEST, OodCheck, rate_of
from skindx.models.ood.mahalanobis import Mahalanobis
from skindx.models.tensors import load_tensors

STATISTICS = "novelty.safetensors"

_TENSORS = {
    "means": ("F32", 2),
    "axes": ("F32", 2),
    "variances": ("F32", 1),
    "rest": ("F64", 0),
    "scores": ("F64", 1),
}


class OodSpecV01(Settings):
    """The index entry of the check in such a bundle."""

    pictures: int = Field(ge=FEWEST)
    """Calibration images whose scores are known."""

    @property
    def rate(self) -> float:
        """Share of photos like the calibration images that is refused, at most."""
        return rate_of(self.pictures)


def load_check_v0_1(folder: Path, spec: OodSpecV01) -> OodCheck:
    """Read it from a bundle's folder: Mahalanobis distance of the embedding, alone.

    Raises UserError for numbers that make no check.
    """
    tensors = load_tensors(folder / STATISTICS, _TENSORS)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    means_CD, axes_AD, variances_A = (arrays[name] for name in ("means", "axes", "variances"))
    scores_N = arrays["scores"]
    if (
        len(means_CD) == 0
        or axes_AD.shape != (len(variances_A), means_CD.shape[1])
        or len(scores_N) != spec.pictures
        or not all(bool(np.isfinite(array).all()) for array in arrays.values())
        or not (variances_A > 0).all()
        or not arrays["rest"] > 0
        or (np.diff(scores_N) < 0).any()
    ):
        raise UserError(
            f"{folder / STATISTICS} does not hold the statistics of an out-of-distribution check; "
            "copy or pack the bundle again."
        )
    distance = Mahalanobis(means_CD, axes_AD, variances_A, float(arrays["rest"]))
    return OodCheck((distance,), scores_N[:, None])
