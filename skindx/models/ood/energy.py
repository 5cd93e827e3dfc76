"""Energy of the logits (Liu et al. 2020, arXiv 2010.03759, eq. 4, at temperature 1)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from skindx.core.settings_base import Settings
from skindx.models.ood.features import Features, Floats, Learned, Singles
from skindx.models.ood.fitted import Fitted, Need

# M = members, N = images, C = classes


class EnergySettings(Settings):
    """Minus the log of the summed exponentials of the logits, the mean over members."""

    kind: Literal["energy"] = "energy"


@dataclass(frozen=True)
class Energy(Fitted):
    """Nothing is fitted."""

    needs: ClassVar[frozenset[Need]] = frozenset({"logits"})

    @classmethod
    def fit(cls, settings: EnergySettings, learned: Learned) -> Self | None:
        """Return the detector; training images are not looked at."""
        return cls()

    def scores(self, features: Features) -> Floats:
        """Return energies, N."""
        mean_N: Floats = np.mean([energy(logits) for logits in features.logits_MNC], axis=0)
        return mean_N


def energy(logits_NC: Singles | Floats) -> Floats:
    """Return minus the logsumexp of logits, N."""
    highest_N = logits_NC.max(axis=1).astype(np.float64)
    exponentials_NC = np.exp(logits_NC.astype(np.float64) - highest_N[:, None])
    energies_N: Floats = -(highest_N + np.log(exponentials_NC.sum(axis=1)))
    return energies_N
