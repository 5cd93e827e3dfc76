"""The out-of-distribution check of bundles of version 0.1: `novelty` in the index.

Newer bundles have `ood` instead, see `skindx.models.ood`.
"""

from pathlib import Path

from pydantic import Field
from safetensors.torch import load_file

from skindx.config import Settings
from skindx.models.ood.check import FEWEST, OodCheck, rate_of
from skindx.models.ood.mahalanobis import Mahalanobis

STATISTICS = "novelty.safetensors"


class NoveltySpec(Settings):
    """What the index of such a bundle says of its check."""

    pictures: int = Field(ge=FEWEST)
    """Calibration images whose scores are known."""

    @property
    def rate(self) -> float:
        """Share of photos like the calibration images that is refused, at most."""
        return rate_of(self.pictures)


def load_novelty(folder: Path) -> OodCheck:
    """Read it from a bundle's folder: Mahalanobis distance of the embedding, alone."""
    arrays = {name: each.numpy() for name, each in load_file(folder / STATISTICS).items()}
    distance = Mahalanobis(
        arrays["means"], arrays["axes"], arrays["variances"], float(arrays["rest"])
    )
    return OodCheck((distance,), arrays["scores"][:, None])
