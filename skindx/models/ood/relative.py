"""Relative Mahalanobis distance (Ren et al. 2021, arXiv 2106.09022, eq. 2 and 3).

The distance to the nearest class minus that to all training images as one Gaussian: directions
in which all images differ alike say nothing of a class.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from skindx.core.settings_base import Settings
from skindx.models.ood.features import Features, Floats, Learned, Singles
from skindx.models.ood.fitted import Fitted, Need
from skindx.models.ood.gaussian import Gaussian, fit_gaussian


class RelativeSettings(Settings):
    """Distance of the embedding to the nearest class minus that to all classes together."""

    kind: Literal["relative_mahalanobis"] = "relative_mahalanobis"


@dataclass(frozen=True)
class RelativeMahalanobis(Fitted):
    """Two Gaussians: by class, and of all images together."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled"})

    means_CD: Singles
    axes_AD: Singles
    variances_A: Singles
    rest: float
    mean_D: Singles
    all_axes_AD: Singles
    all_variances_A: Singles
    all_rest: float

    @classmethod
    def fit(cls, settings: RelativeSettings, learned: Learned) -> Self | None:
        """Fit on the embeddings of training images."""
        embeddings_NE = learned.features.embeddings
        by_class = fit_gaussian(embeddings_NE, learned.labels_N)
        of_all = fit_gaussian(embeddings_NE, np.zeros_like(learned.labels_N))
        if by_class is None or of_all is None:
            return None
        return cls(
            by_class.means_CD,
            by_class.axes_AD,
            by_class.variances_A,
            by_class.rest,
            of_all.means_CD[0],
            of_all.axes_AD,
            of_all.variances_A,
            of_all.rest,
        )

    def scores(self, features: Features) -> Floats:
        """Return differences of squared distances, N."""
        embeddings_NE = features.embeddings
        by_class = Gaussian(self.means_CD, self.axes_AD, self.variances_A, self.rest)
        of_all = Gaussian(self.mean_D[None], self.all_axes_AD, self.all_variances_A, self.all_rest)
        return by_class.distances(embeddings_NE) - of_all.distances(embeddings_NE)
