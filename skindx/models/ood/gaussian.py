"""One Gaussian of several means with one covariance, and the distance to the nearest mean."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.models.ood.features import Floats, Singles

AXES = 64

# N = images, P = training images, C = classes, D = dimensions, A = axes with their own variance


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
        for mean_D in self.means_CD:
            off_ND = points_ND.astype(np.float64) - mean_D
            along_NA = off_ND @ self.axes_AD.T
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
    # Of few images the last axes are noise, and would leave nothing for the rest.
    axes = max(1, min(AXES, images // 4, dimensions // 2))
    _, spread_A, axes_AD = randomized_svd(off_PD, axes, random_state=0)
    variances_A = spread_A**2 / images
    rest = (total - float(variances_A.sum())) / (dimensions - axes)
    # Rounding alone leaves so much where the axes hold all there is.
    if not rest > 1e-9 * float(variances_A.sum()) or not variances_A.min() > 0:
        return None
    return Gaussian(means_CD, axes_AD.astype(np.float32), variances_A.astype(np.float32), rest)
