"""The detectors that bundles carry, all kinds by name, and how unusual images are among others."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.kinds import Family
from skindx.models.ood.ood_features import (
    Features,
    Floats,
    Need,
    OodDetector,
    OodDetectorSettings,
    Singles,
    TrainingFeatures,
)

# N = images, P = training images, C = classes, D = dimensions, A = axes with their own variance,
# F = statistics, or images that a Gaussian is fitted to; J = components

DETECTORS = Family(
    "OOD detector",
    "skindx.ood_detectors",
    {
        "image_mixture": "skindx.models.ood.ood_detectors:ImageMixtureSettings",
        "mahalanobis": "skindx.models.ood.ood_detectors:MahalanobisSettings",
    },
    travels=True,
)

AXES = 64
USUAL = 0.75
"""Share of the images that the Gaussian is fitted to; more than the rest may not be off topic."""
_MOST = 20_000
"""Images that take part in the fit: more change it little."""
_STEPS = 20
_NORMAL = 1.4826
"""Standard deviations in a median absolute deviation, if values are normal."""
_CHUNK = 8192
FEWEST = 8
"""Fewest training images for one Gaussian."""
_FLOOR = 0.05


@dataclass(frozen=True)
class Gaussian:
    """Class means and one covariance, that of probabilistic PCA (Tipping and Bishop 1999).

    A axes have a variance of their own and all other directions share one, which a few hundred
    images can support and which is small on disk.
    """

    means_CD: Singles
    axes_AD: Singles
    """Orthonormal directions in which images differ most from their class's mean."""
    variances_A: Singles
    rest: float
    """Variance along every other direction."""

    def distances(self, points_ND: Singles | Floats) -> Floats:
        """Return the squared Mahalanobis distance to the nearest mean, N."""
        nearest_N = np.full(len(points_ND), np.inf)
        axes_DA = self.axes_AD.T.astype(np.float64)
        for mean_D in self.means_CD:
            off_ND = points_ND.astype(np.float64) - mean_D
            along_NA = off_ND @ axes_DA
            within_N = (along_NA**2 / self.variances_A).sum(axis=1)
            beside_N = (off_ND**2).sum(axis=1) - (along_NA**2).sum(axis=1)
            nearest_N = np.minimum(nearest_N, within_N + beside_N / self.rest)
        return nearest_N


def fit_gaussian(points_PD: Singles | Floats, labels_P: NDArray[np.str_]) -> Gaussian | None:
    """Fit means and covariance; None for images that do not differ within their classes."""
    from sklearn.utils.extmath import randomized_svd

    if len(points_PD) == 0:
        return None
    _, class_P = np.unique(labels_P, return_inverse=True)
    means_CD = np.stack([points_PD[class_P == c].mean(axis=0) for c in np.unique(class_P)])
    off_PD = points_PD - means_CD[class_P]
    images, dimensions = off_PD.shape
    total = float((off_PD.astype(np.float64) ** 2).sum()) / images
    # Less is the rounding of single precision.
    if not total > 1e-10 * float((points_PD.astype(np.float64) ** 2).mean()) * dimensions:
        return None
    # With few images the last axes are noise and would leave nothing for the rest.
    axes = max(1, min(AXES, images // 4, dimensions // 2))
    _, spread_A, axes_AD = randomized_svd(off_PD, axes, random_state=0)
    variances_A = spread_A**2 / images
    rest = (total - float(variances_A.sum())) / (dimensions - axes)
    # Rounding alone leaves so much where the axes hold all there is.
    if not rest > 1e-9 * float(variances_A.sum()) or not variances_A.min() > 0:
        return None
    return Gaussian(means_CD, axes_AD.astype(np.float32), variances_A.astype(np.float32), rest)


@dataclass(frozen=True)
class Mahalanobis(Gaussian, OodDetector):
    """Class means and covariance of embeddings."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled"})

    @classmethod
    def fit(cls, settings: OodDetectorSettings, learned: TrainingFeatures) -> Self | None:
        """Fit on the embeddings of training images."""
        gaussian = fit_gaussian(learned.features.embeddings, learned.labels_N)
        if gaussian is None:
            return None
        # They are most of a bundle's check; half precision moves a distance by some 0.02 %.
        return cls(**{**vars(gaussian), "axes_AD": gaussian.axes_AD.astype(np.float16)})

    def scores(self, features: Features) -> Floats:
        """Return squared distances, N."""
        return self.distances(features.embeddings)


class MahalanobisSettings(OodDetectorSettings):
    """Distance of the embedding to the nearest class.

    Lee et al. 2018, arXiv 1807.03888, eq. 2, with the covariance of probabilistic PCA in the place
    of the empirical one.
    """

    kind: Literal["mahalanobis"] = "mahalanobis"
    detector: ClassVar = Mahalanobis


@dataclass(frozen=True)
class ImageMixture(OodDetector):
    """Mean, scale and whitening axes of the statistics; weights, means, variances in these."""

    needs: ClassVar[frozenset[Need]] = frozenset({"image"})

    mean_F: Singles
    scale_F: Singles
    axes_FF: Singles
    weights_J: Singles
    means_JF: Singles
    variances_JF: Singles

    @classmethod
    def fit(cls, settings: "ImageMixtureSettings", learned: TrainingFeatures) -> Self | None:
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


class ImageMixtureSettings(OodDetectorSettings):
    """Likelihood of the image's colours and bands of detail among training images.

    Images of one kind come in several sorts (with and without a ring of the dermatoscope, hairs,
    gel): one Gaussian around all of them is so wide that other cameras lie inside. The statistics
    are made uncorrelated, then a mixture with diagonal covariances, whose variances have a floor,
    is fitted by expectation maximisation (Dempster et al. 1977; McLachlan and Peel 2000, ch. 3).
    """

    kind: Literal["image_mixture"] = "image_mixture"
    detector: ClassVar = ImageMixture
    components: int = Field(4, ge=1, le=1024)


def scaled_statistics(learned: TrainingFeatures) -> tuple[Floats, Floats, Floats] | None:
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


DEFAULT: tuple[OodDetectorSettings, ...] = (MahalanobisSettings(), ImageMixtureSettings())
"""What a bundle gets where settings name nothing else: chosen by `skindx bench honesty ood`."""


def unusual_scores(vectors_ND: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each image stands from the usual among many, some of which are off topic, N.

    The distance of Mahalanobis to one Gaussian, fitted to the most usual three quarters alone by
    concentration steps (Rousseeuw and Van Driessen 1999, "A fast algorithm for the minimum
    covariance determinant estimator"): images that do not belong do not widen what counts as
    usual, even where they are alike, as a batch of scanned pages is.

    In robust standard deviations of the distance's logarithm above its median. Raises UserError
    for images that do not differ.
    """
    rng = np.random.default_rng(0)
    taken_F = np.sort(rng.permutation(len(vectors_ND))[:_MOST])
    fitted = _concentrate(vectors_ND[taken_F])
    starts = range(0, len(vectors_ND), _CHUNK)
    parts = [fitted.distances(vectors_ND[start : start + _CHUNK]) for start in starts]
    logs_N = np.log(np.maximum(np.concatenate(parts), 1e-12))
    middle = np.median(logs_N[taken_F])
    spread = _NORMAL * np.median(np.abs(logs_N[taken_F] - middle))
    scores_N: NDArray[np.float64] = (logs_N - middle) / max(spread, 1e-12)
    return scores_N


def _concentrate(vectors_FD: NDArray[np.float32]) -> Gaussian:
    """Fit, in 64 bits, to the nearest USUAL share, again and again, until it is the same one."""
    count = int(USUAL * len(vectors_FD))
    # The median of each number is where most are, whatever a quarter of them says.
    off_FD = vectors_FD - np.median(vectors_FD, axis=0)
    near_F = np.sort(np.argsort((off_FD**2).sum(axis=1), kind="stable")[:count])
    fitted = _fit(vectors_FD[near_F])
    for _ in range(_STEPS):
        nearest_F = np.argsort(fitted.distances(vectors_FD), kind="stable")[:count]
        again_F = np.sort(nearest_F)
        if np.array_equal(again_F, near_F):
            break
        near_F, fitted = again_F, _fit(vectors_FD[again_F])
    return fitted


def _fit(vectors_FD: NDArray[np.float32]) -> Gaussian:
    fitted = fit_gaussian(vectors_FD.astype(np.float64), np.zeros(len(vectors_FD), dtype="<U1"))
    if fitted is None:
        raise UserError(
            "all images have the same embedding; compute the embeddings with another network."
        )
    return fitted
