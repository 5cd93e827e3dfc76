"""Statistics of the layers within the networks, which see style and texture before meaning.

`gram` takes channel means and deviations, the diagonal of Gram matrices (Sastry and Oore 2020,
arXiv 1912.12510), as one Gaussian a layer; `mahalanobis_layers` takes channel means, one Gaussian
a class and layer (Lee et al. 2018, arXiv 1807.03888, sec. 2.2). Both need hooks in the eager
networks: exports deliver the last map alone, so a bundle cannot carry them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.settings_base import Settings
from skindx.models.ood.features import Features, Floats, Learned, Singles
from skindx.models.ood.fitted import Fitted, Need
from skindx.models.ood.gaussian import Gaussian, fit_gaussian

# L = layers, N = images, K = channels of a layer


class GramSettings(Settings):
    """Channel means and deviations of each layer, whatever the class."""

    kind: Literal["gram"] = "gram"


class LayersSettings(Settings):
    """Channel means of each layer, distance to the nearest class."""

    kind: Literal["mahalanobis_layers"] = "mahalanobis_layers"


@dataclass(frozen=True)
class Gram(Fitted):
    """A Gaussian of each layer, and the distance that is usual there."""

    needs: ClassVar[frozenset[Need]] = frozenset({"layers"})

    means_LCK: tuple[Singles, ...]
    axes_LAK: tuple[Singles, ...]
    variances_LA: tuple[Singles, ...]
    rests_L: Singles
    usual_L: Singles
    scales_LK: tuple[Singles, ...]

    @classmethod
    def fit(cls, settings: GramSettings | LayersSettings, learned: Learned) -> Self | None:
        """Fit each layer on training images."""
        labels_N = cls._labels(learned)
        gaussians, scales, usual = [], [], []
        for layer_NK in learned.features.layers_LNK:
            points_NK = cls._points(layer_NK)
            spread_K = points_NK.std(axis=0)
            # A channel that is silent on all training images keeps its own scale.
            scale_K = np.where(spread_K > 1e-6, spread_K, np.float32(1))
            found = fit_gaussian(points_NK / scale_K, labels_N)
            if found is None:
                return None
            gaussians.append(found)
            scales.append(scale_K)
            usual.append(np.median(found.distances(points_NK / scale_K)))
        return cls(
            tuple(found.means_CD for found in gaussians),
            tuple(found.axes_AD for found in gaussians),
            tuple(found.variances_A for found in gaussians),
            np.array([found.rest for found in gaussians], dtype=np.float32),
            np.array(usual, dtype=np.float32),
            tuple(scales),
        )

    def scores(self, features: Features) -> Floats:
        """Return the mean over layers of distances, each over what is usual there, N."""
        found = []
        for n, layer_NK in enumerate(features.layers_LNK):
            gaussian = Gaussian(
                self.means_LCK[n], self.axes_LAK[n], self.variances_LA[n], float(self.rests_L[n])
            )
            points_NK = self._points(layer_NK) / self.scales_LK[n]
            found.append(gaussian.distances(points_NK) / float(self.usual_L[n]))
        scores_N: Floats = np.mean(found, axis=0)
        return scores_N

    @staticmethod
    def _labels(learned: Learned) -> NDArray[np.str_]:
        return np.zeros_like(learned.labels_N)

    @staticmethod
    def _points(layer_NK: Singles) -> Singles:
        half = layer_NK.shape[1] // 2
        return np.concatenate([layer_NK[:, :half], np.log(layer_NK[:, half:] + 1e-4)], axis=1)


@dataclass(frozen=True)
class MahalanobisLayers(Gram):
    """The same of channel means alone, by class."""

    @staticmethod
    def _labels(learned: Learned) -> NDArray[np.str_]:
        return learned.labels_N

    @staticmethod
    def _points(layer_NK: Singles) -> Singles:
        return layer_NK[:, : layer_NK.shape[1] // 2]
