"""Likelihood of the image's own statistics under a mixture of Gaussians.

Images of one kind come in several sorts (with and without a ring of the dermatoscope, hairs, gel):
one Gaussian around all of them is so wide that other cameras lie inside. Statistics as in
`image.py`, made uncorrelated, then a mixture with diagonal covariances by expectation maximisation
(Dempster et al. 1977; McLachlan and Peel 2000, ch. 3), whose variances have a floor.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.models.ood.features import Features, Floats, Learned, Singles
from skindx.models.ood.fitted import Fitted, Need
from skindx.models.ood.image import FEWEST, scaled_statistics

_FLOOR = 0.05

# N = images, F = statistics, J = components


class ImageMixtureSettings(Settings):
    """Likelihood of the image's colours and bands of detail among training images."""

    kind: Literal["image_mixture"] = "image_mixture"
    components: int = Field(4, ge=1, le=1024)


@dataclass(frozen=True)
class ImageMixture(Fitted):
    """Mean, scale and whitening axes of the statistics; weights, means, variances in these."""

    needs: ClassVar[frozenset[Need]] = frozenset({"image"})

    mean_F: Singles
    scale_F: Singles
    axes_FF: Singles
    weights_J: Singles
    means_JF: Singles
    variances_JF: Singles

    @classmethod
    def fit(cls, settings: ImageMixtureSettings, learned: Learned) -> Self | None:
        """Fit on training images; None for too few, and where they do not differ."""
        from sklearn.covariance import LedoitWolf
        from sklearn.mixture import GaussianMixture

        scaled = scaled_statistics(learned)
        if scaled is None:
            return None
        mean_F, scale_F, plain_NF = scaled
        values_F, vectors_FF = np.linalg.eigh(LedoitWolf().fit(plain_NF).covariance_)
        axes_FF = vectors_FF / np.sqrt(values_F)
        mixture = GaussianMixture(
            min(settings.components, len(plain_NF) // FEWEST),
            covariance_type="diag",
            reg_covar=_FLOOR,
            random_state=0,
        ).fit(plain_NF @ axes_FF)
        arrays = (mean_F, scale_F, axes_FF, mixture.weights_, mixture.means_, mixture.covariances_)
        return cls(*(array.astype(np.float32) for array in arrays))

    def scores(self, features: Features) -> Floats:
        """Return minus the logarithms of the likelihood, N."""
        plain_NF = (features.image_NF.astype(np.float64) - self.mean_F) / self.scale_F
        off_NJF = (plain_NF @ self.axes_FF)[:, None] - self.means_JF
        logs_NJ = np.log(self.weights_J) - 0.5 * (
            off_NJF**2 / self.variances_JF + np.log(2 * np.pi * self.variances_JF)
        ).sum(2)
        highest_N = logs_NJ.max(axis=1)
        scores_N: Floats = -(highest_N + np.log(np.exp(logs_NJ - highest_N[:, None]).sum(axis=1)))
        return scores_N
