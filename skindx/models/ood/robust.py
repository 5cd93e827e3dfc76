"""How unusual each of many images is among the others, where some may not belong there at all.

The distance of Mahalanobis to one Gaussian, fitted to the most usual three quarters alone by
concentration steps (Rousseeuw and Van Driessen 1999, "A fast algorithm for the minimum covariance
determinant estimator"): images that do not belong do not widen what counts as usual, even where
they are alike, as a batch of scanned pages is, whose nearest neighbours are near.
"""

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.models.ood.gaussian import Gaussian, fit_gaussian

# N = images, D = dimensions, F = images that the Gaussian is fitted to

USUAL = 0.75
"""Share of the images that the Gaussian is fitted to; more than the rest may not be off topic."""
_MOST = 20_000
"""Images that take part in the fit: more change it little."""
_STEPS = 20
_NORMAL = 1.4826
"""Standard deviations in a median absolute deviation, if values are normal."""
_CHUNK = 8192


def unusual_scores(vectors_ND: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each image stands from the usual, N.

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
    """Fit to the nearest USUAL share, again and again, until it is the same share."""
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
    fitted = fit_gaussian(vectors_FD, np.zeros(len(vectors_FD), dtype="<U1"))
    if fitted is None:
        raise UserError("the images' embeddings do not differ; embed with another network.")
    return fitted
