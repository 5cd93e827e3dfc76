"""Mahalanobis distance of the embedding to the nearest class (Lee et al. 2018, arXiv 1807.03888).

Eq. 2 there, with the covariance of probabilistic PCA in the place of the empirical one.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from skindx.core.settings_base import Settings
from skindx.models.ood.features import Features, Floats, Learned
from skindx.models.ood.fitted import Fitted, Need
from skindx.models.ood.gaussian import Gaussian, fit_gaussian


class MahalanobisSettings(Settings):
    """Distance of the embedding to the nearest class."""

    kind: Literal["mahalanobis"] = "mahalanobis"


@dataclass(frozen=True)
class Mahalanobis(Gaussian, Fitted):
    """Class means and covariance of embeddings."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled"})

    @classmethod
    def fit(cls, settings: MahalanobisSettings, learned: Learned) -> Self | None:
        """Fit on the embeddings of training images."""
        found = fit_gaussian(learned.features.embeddings, learned.labels_N)
        return None if found is None else cls(**vars(found))

    def scores(self, features: Features) -> Floats:
        """Return squared distances, N."""
        return self.distances(features.embeddings)
