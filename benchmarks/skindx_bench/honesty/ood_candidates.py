"""Detectors of which evidence has to choose: those that a bundle may hold, and eight others.

Two of the others read statistics of hooked layers, which no export delivers.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.models.ensemble import Ensemble
from skindx.models.ood.ood_detectors import (
    Gaussian,
    ImageMixtureSettings,
    MahalanobisSettings,
    fit_gaussian,
    scaled_statistics,
)
from skindx.models.ood.ood_features import (
    Features,
    Floats,
    Need,
    OodDetector,
    OodDetectorSettings,
    Singles,
    TrainingFeatures,
)

# M = members, N = images, P = training images, C = classes, D = dimensions, E = dimensions of an
# embedding, F = statistics, L = layers, K = channels of a layer, A = principal axes


@dataclass(frozen=True)
class LogitEnergy(OodDetector):
    """Nothing is fitted."""

    needs: ClassVar[frozenset[Need]] = frozenset({"logits"})

    @classmethod
    def fit(cls, settings: OodDetectorSettings, learned: TrainingFeatures) -> Self | None:
        """Return the detector; training images are not looked at."""
        return cls()

    def scores(self, features: Features) -> Floats:
        """Return energies, N."""
        mean_N: Floats = np.mean([energy(logits) for logits in features.logits_MNC], axis=0)
        return mean_N


class EnergySettings(OodDetectorSettings):
    """Minus the log of the summed exponentials of the logits, the mean over members.

    Liu et al. 2020, arXiv 2010.03759, eq. 4, at temperature 1.
    """

    kind: Literal["energy"] = "energy"
    detector: ClassVar = LogitEnergy


def energy(logits_NC: Singles | Floats) -> Floats:
    """Return minus the logsumexp of logits, N."""
    highest_N = logits_NC.max(axis=1).astype(np.float64)
    exponentials_NC = np.exp(logits_NC.astype(np.float64) - highest_N[:, None])
    energies_N: Floats = -(highest_N + np.log(exponentials_NC.sum(axis=1)))
    return energies_N


@dataclass(frozen=True)
class ReAct(OodDetector):
    """Each member's cut and last layer."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled"})

    cuts_M: Singles
    weights_MCD: tuple[Singles, ...]
    biases_MC: tuple[Singles, ...]

    @classmethod
    def fit(cls, settings: "ReActSettings", learned: TrainingFeatures) -> Self | None:
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


class ReActSettings(OodDetectorSettings):
    """Energy of the logits that the last layer makes of cut activations.

    Sun et al. 2021, arXiv 2111.12797.
    """

    kind: Literal["react"] = "react"
    detector: ClassVar = ReAct
    percentile: float = Field(90.0, gt=0, le=100)
    """Of all activations of training images: what is above it is cut."""


@dataclass(frozen=True)
class ViM(OodDetector):
    """Each member's origin, principal axes, and scale of the virtual logit."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled", "logits"})

    origins_MD: tuple[Singles, ...]
    axes_MAD: tuple[Singles, ...]
    alphas_M: Singles

    @classmethod
    def fit(cls, settings: "ViMSettings", learned: TrainingFeatures) -> Self | None:
        """Fit on the pooled features and logits of training images."""
        origins, axes, alphas = [], [], []
        for pooled_ND, logits_NC, weight_CD, bias_C in zip(
            learned.features.pooled_MND,
            learned.features.logits_MNC,
            learned.weights_MCD,
            learned.biases_MC,
            strict=True,
        ):
            origin_D = -(np.linalg.pinv(weight_CD) @ bias_C)
            count = max(1, min(settings.axes, len(pooled_ND) // 2, pooled_ND.shape[1] // 2))
            off_ND = (pooled_ND - origin_D).astype(np.float64)
            axes_AD = np.linalg.eigh(off_ND.T @ off_ND).eigenvectors[:, -count:].T
            residual_N = _residuals(pooled_ND, origin_D, axes_AD)
            if not residual_N.mean() > 0:
                return None
            origins.append(origin_D.astype(np.float32))
            axes.append(axes_AD.astype(np.float32))
            alphas.append(logits_NC.max(axis=1).mean() / residual_N.mean())
        return cls(tuple(origins), tuple(axes), np.array(alphas, dtype=np.float32))

    def scores(self, features: Features) -> Floats:
        """Return virtual logits minus the logsumexp of the others, N, the mean over members."""
        members = zip(
            features.pooled_MND,
            features.logits_MNC,
            self.origins_MD,
            self.axes_MAD,
            self.alphas_M,
            strict=True,
        )
        mean_N: Floats = np.mean(
            [
                alpha * _residuals(pooled, origin, axes) + energy(logits)
                for pooled, logits, origin, axes, alpha in members
            ],
            axis=0,
        )
        return mean_N


class ViMSettings(OodDetectorSettings):
    """Energy, and the norm of the features outside their principal subspace as one more logit.

    Wang et al. 2022, arXiv 2203.10807, eq. 3 to 6: the score is alpha * |residual| - logsumexp,
    with the origin of the features where all logits are equal to the bias-free ones.
    """

    kind: Literal["vim"] = "vim"
    detector: ClassVar = ViM
    axes: int = Field(64, ge=1, le=10**6)
    """Dimension of the principal subspace; at most half of the features' and of the images'."""


def _residuals(pooled_ND: Singles, origin_D: Singles | Floats, axes_AD: Singles | Floats) -> Floats:
    off_ND = (pooled_ND - origin_D).astype(np.float64)
    squared_N = (off_ND**2).sum(axis=1) - ((off_ND @ axes_AD.T) ** 2).sum(axis=1)
    residuals_N: Floats = np.sqrt(np.maximum(squared_N, 0))
    return residuals_N


@dataclass(frozen=True)
class KnnDistance(OodDetector):
    """All training embeddings."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled"})

    bank_PE: Singles
    k: int

    @classmethod
    def fit(cls, settings: "KnnSettings", learned: TrainingFeatures) -> Self | None:
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


class KnnSettings(OodDetectorSettings):
    """Euclidean distance of the embedding, of length 1, to its k-th nearest training image.

    Sun et al. 2022, arXiv 2204.06507.
    """

    kind: Literal["knn"] = "knn"
    detector: ClassVar = KnnDistance
    k: int = Field(10, ge=1, le=10**6)


@dataclass(frozen=True)
class RelativeMahalanobis(OodDetector):
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
    def fit(cls, settings: OodDetectorSettings, learned: TrainingFeatures) -> Self | None:
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


class RelativeSettings(OodDetectorSettings):
    """Distance of the embedding to the nearest class minus that to all classes together.

    Ren et al. 2021, arXiv 2106.09022, eq. 2 and 3: directions in which all images differ alike say
    nothing of a class.
    """

    kind: Literal["relative_mahalanobis"] = "relative_mahalanobis"
    detector: ClassVar = RelativeMahalanobis


@dataclass(frozen=True)
class ImageDistance(OodDetector):
    """Mean, scale and inverse correlation of the statistics."""

    needs: ClassVar[frozenset[Need]] = frozenset({"image"})

    mean_F: Singles
    scale_F: Singles
    precision_FF: Singles

    @classmethod
    def fit(cls, settings: OodDetectorSettings, learned: TrainingFeatures) -> Self | None:
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


class ImageSettings(OodDetectorSettings):
    """Distance of the image's colours and bands of detail to those of training images.

    One Gaussian for all classes, as NIQE does for quality (Mittal et al. 2013, "Making a completely
    blind image quality analyzer", eq. 10); the covariance is shrunk (Ledoit and Wolf 2004), so that
    few images suffice.
    """

    kind: Literal["image"] = "image"
    detector: ClassVar = ImageDistance


@dataclass(frozen=True)
class LayeredFeatures(Features):
    """Features of N images, those of hooked layers as well."""

    layers_LNK: tuple[Singles, ...] = ()
    """Channel means, then channel deviations, of the layers of all members."""


@dataclass(frozen=True)
class Gram(OodDetector):
    """A Gaussian of each layer, and the distance that is usual there."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    means_LCK: tuple[Singles, ...]
    axes_LAK: tuple[Singles, ...]
    variances_LA: tuple[Singles, ...]
    rests_L: Singles
    usual_L: Singles
    scales_LK: tuple[Singles, ...]

    @classmethod
    def fit(cls, settings: OodDetectorSettings, learned: TrainingFeatures) -> Self | None:
        """Fit each layer on training images."""
        assert isinstance(learned.features, LayeredFeatures)
        labels_N = cls._labels(learned)
        gaussians, scales, usual = [], [], []
        for layer_NK in learned.features.layers_LNK:
            points_NK = cls._points(layer_NK)
            spread_K = points_NK.std(axis=0)
            # A channel that is silent on all training images keeps its own scale.
            scale_K = np.where(spread_K > 1e-6, spread_K, np.float32(1))
            gaussian = fit_gaussian(points_NK / scale_K, labels_N)
            if gaussian is None:
                return None
            gaussians.append(gaussian)
            scales.append(scale_K)
            usual.append(np.median(gaussian.distances(points_NK / scale_K)))
        return cls(
            tuple(one.means_CD for one in gaussians),
            tuple(one.axes_AD for one in gaussians),
            tuple(one.variances_A for one in gaussians),
            np.array([one.rest for one in gaussians], dtype=np.float32),
            np.array(usual, dtype=np.float32),
            tuple(scales),
        )

    def scores(self, features: Features) -> Floats:
        """Return the mean over layers of distances, each over what is usual there, N."""
        assert isinstance(features, LayeredFeatures)
        distances = []
        for n, layer_NK in enumerate(features.layers_LNK):
            gaussian = Gaussian(
                self.means_LCK[n], self.axes_LAK[n], self.variances_LA[n], float(self.rests_L[n])
            )
            points_NK = self._points(layer_NK) / self.scales_LK[n]
            distances.append(gaussian.distances(points_NK) / float(self.usual_L[n]))
        scores_N: Floats = np.mean(distances, axis=0)
        return scores_N

    @staticmethod
    def _labels(learned: TrainingFeatures) -> NDArray[np.str_]:
        return np.zeros_like(learned.labels_N)

    @staticmethod
    def _points(layer_NK: Singles) -> Singles:
        half = layer_NK.shape[1] // 2
        return np.concatenate([layer_NK[:, :half], np.log(layer_NK[:, half:] + 1e-4)], axis=1)


class GramSettings(OodDetectorSettings):
    """Channel means and deviations of each layer, whatever the class.

    Layers see style and texture before meaning: the diagonal of Gram matrices (Sastry and Oore
    2020, arXiv 1912.12510). Hooks in the eager networks deliver these, exports the last map alone,
    so a bundle cannot carry them.
    """

    kind: Literal["gram"] = "gram"
    detector: ClassVar = Gram


@dataclass(frozen=True)
class MahalanobisLayers(Gram):
    """The same of channel means alone, by class."""

    @staticmethod
    def _labels(learned: TrainingFeatures) -> NDArray[np.str_]:
        return learned.labels_N

    @staticmethod
    def _points(layer_NK: Singles) -> Singles:
        return layer_NK[:, : layer_NK.shape[1] // 2]


class LayersSettings(OodDetectorSettings):
    """Channel means of each layer, distance to the nearest class.

    Lee et al. 2018, arXiv 1807.03888, sec. 2.2. A bundle cannot carry it, as with gram.
    """

    kind: Literal["mahalanobis_layers"] = "mahalanobis_layers"
    detector: ClassVar = MahalanobisLayers


KINDS: dict[str, OodDetectorSettings] = {
    settings.kind: settings
    for settings in (
        EnergySettings(),
        GramSettings(),
        ImageMixtureSettings(),
        ImageSettings(),
        KnnSettings(),
        LayersSettings(),
        MahalanobisSettings(),
        ReActSettings(),
        RelativeSettings(),
        ViMSettings(),
    )
}
"""Default settings of each kind of detector."""


Layers = list[list[list[Tensor]]]
"""Of each member, of each of its stages: a batch's statistics, from one pass or from several."""


@contextmanager
def hooked(ensemble: Ensemble) -> Iterator[Layers]:
    """Collect channel means and deviations B x 2K of every stage of every eager member.

    The stages are those that timm names as a network's features. Call `taken` after each batch.
    Raises UserError for an exported member, and for a network whose stages timm does not name.
    """
    with ExitStack() as stack:
        layers: Layers = []
        for member in ensemble.members:
            names = _stages(member.classifier.net)
            if member.exported or not names:
                raise UserError(
                    f"{member.name} gives no statistics of its layers; load the bundle with the "
                    "backend eager, and leave out the detectors of layers for such a network."
                )
            stages: list[list[Tensor]] = [[] for _ in names]
            layers.append(stages)
            for name, moments in zip(names, stages, strict=True):
                module = member.classifier.net.get_submodule(name)
                hook = module.register_forward_hook(
                    lambda _module, _given, out, moments=moments: moments.append(_moments(out))
                )
                stack.callback(hook.remove)
        yield layers


def taken(layers: Layers) -> tuple[Singles, ...]:
    """Return the statistics of the last batch, all members' layers in order, and forget them.

    A CPU sees a batch image by image, so a stage has a part of each image.
    """
    every = [moments for stages in layers for moments in stages]
    batch = tuple(torch.cat(moments).cpu().numpy() for moments in every)
    for moments in every:
        moments.clear()
    return batch


def _stages(net: nn.Module) -> list[str]:
    modules = dict(net.named_modules())
    info: Any = getattr(net, "feature_info", None) or []
    rows = info if isinstance(info, list) else info.info
    return [row["module"] for row in rows if row["module"] in modules]


def _moments(map_BKHW: Tensor) -> Tensor:
    flat_BKP = map_BKHW.float().flatten(2)
    return torch.cat([flat_BKP.mean(2), flat_BKP.std(2, correction=0)], dim=1)
