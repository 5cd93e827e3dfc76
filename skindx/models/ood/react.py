"""ReAct: energy after activations are cut at a percentile (Sun et al. 2021, arXiv 2111.12797)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.models.ood.energy import energy
from skindx.models.ood.features import Features, Floats, Learned, Singles
from skindx.models.ood.fitted import Fitted, Need

# M = members, N = images, C = classes, D = dimensions


class ReActSettings(Settings):
    """Energy of the logits that the last layer makes of cut activations."""

    kind: Literal["react"] = "react"
    percentile: float = Field(90.0, gt=0, le=100)
    """Of all activations of training images: what is above it is cut."""


@dataclass(frozen=True)
class ReAct(Fitted):
    """Each member's cut and last layer."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled"})

    cuts_M: Singles
    weights_MCD: tuple[Singles, ...]
    biases_MC: tuple[Singles, ...]

    @classmethod
    def fit(cls, settings: ReActSettings, learned: Learned) -> Self | None:
        """Find the cuts on training images."""
        pooled = learned.features.pooled_MND
        cuts = [np.percentile(part, settings.percentile) for part in pooled]
        return cls(np.array(cuts, dtype=np.float32), learned.weights_MCD, learned.biases_MC)

    def scores(self, features: Features) -> Floats:
        """Return energies, N."""
        members = zip(
            features.pooled_MND, self.cuts_M, self.weights_MCD, self.biases_MC, strict=True
        )
        mean_N: Floats = np.mean(
            [energy(np.minimum(pooled, cut) @ w.T + b) for pooled, cut, w, b in members], axis=0
        )
        return mean_N
