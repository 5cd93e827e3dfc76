"""Mahalanobis distance of the image's own statistics, one Gaussian for all classes.

As NIQE does for quality (Mittal et al. 2013, "Making a completely blind image quality analyzer",
eq. 10); the covariance is shrunk (Ledoit and Wolf 2004), so that few images suffice.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from skindx.core.settings_base import Settings
from skindx.models.ood.features import Features, Floats, Learned, Singles
from skindx.models.ood.fitted import Fitted, Need

FEWEST = 8
"""So many training images are needed for one Gaussian at least."""

# N = images, F = statistics


class ImageSettings(Settings):
    """Distance of the image's colours and bands of detail to those of training images."""

    kind: Literal["image"] = "image"


def scaled_statistics(learned: Learned) -> tuple[Floats, Floats, Floats] | None:
    """Return mean and scale of the training images' statistics, F each, and these scaled, (N, F).

    None for too few images, and where they do not differ.
    """
    image_NF = learned.features.image_NF.astype(np.float64)
    if len(image_NF) < FEWEST:
        return None
    mean_F, scale_F = image_NF.mean(axis=0), image_NF.std(axis=0)
    if not scale_F.min() > 1e-6:
        return None
    return mean_F, scale_F, (image_NF - mean_F) / scale_F


@dataclass(frozen=True)
class ImageDistance(Fitted):
    """Mean, scale and inverse correlation of the statistics."""

    needs: ClassVar[frozenset[Need]] = frozenset({"image"})

    mean_F: Singles
    scale_F: Singles
    precision_FF: Singles

    @classmethod
    def fit(cls, settings: ImageSettings, learned: Learned) -> Self | None:
        """Fit on training images; None for too few, and where they do not differ."""
        from sklearn.covariance import LedoitWolf

        scaled = scaled_statistics(learned)
        if scaled is None:
            return None
        mean_F, scale_F, scaled_NF = scaled
        arrays = (mean_F, scale_F, LedoitWolf().fit(scaled_NF).precision_)
        return cls(*(array.astype(np.float32) for array in arrays))

    def scores(self, features: Features) -> Floats:
        """Return squared distances, N."""
        off_NF = (features.image_NF.astype(np.float64) - self.mean_F) / self.scale_F
        distances_N: Floats = np.einsum("nf,fg,ng->n", off_NF, self.precision_FF, off_NF)
        return distances_N
