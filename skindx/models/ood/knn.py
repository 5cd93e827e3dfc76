"""Distance of the embedding to its k-th nearest training image (Sun et al. 2022, 2204.06507)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.models.ood.features import Features, Floats, Learned, Singles
from skindx.models.ood.fitted import Fitted, Need

# N = images, P = training images, E = dimensions of an embedding


class KnnSettings(Settings):
    """Euclidean distance of embeddings of length 1."""

    kind: Literal["knn"] = "knn"
    k: int = Field(10, ge=1, le=10**6)


@dataclass(frozen=True)
class Knn(Fitted):
    """All training embeddings."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled"})

    bank_PE: Singles
    k: int

    @classmethod
    def fit(cls, settings: KnnSettings, learned: Learned) -> Self | None:
        """Keep the training embeddings; None for fewer than k of them."""
        bank_PE = learned.features.embeddings
        return cls(bank_PE, settings.k) if len(bank_PE) >= settings.k else None

    def scores(self, features: Features) -> Floats:
        """Return distances, N."""
        cosines_NP = features.embeddings @ self.bank_PE.T
        place = cosines_NP.shape[1] - self.k
        kth_N = np.partition(cosines_NP, place, axis=1)[:, place].astype(np.float64)
        distances_N: Floats = np.sqrt(np.maximum(2 - 2 * kth_N, 0))
        return distances_N
