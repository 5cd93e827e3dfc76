"""Temperature scaling: confidence that means what it says (Guo et al. 2017, section 4.2)."""

import math

import numpy as np
from numpy.typing import NDArray

COLDEST, HOTTEST = 0.05, 20.0

# N = images, C = classes


def fit_temperature(scores_NC: NDArray[np.floating], truth_N: NDArray[np.integer]) -> float:
    """Return the temperature in [0.05, 20] with the least negative log-likelihood.

    `scores_NC` are logits or log-probabilities of validation images; both give the same
    temperature. The targets are smoothed as Platt (1999, section 2.2) does: of N images, all
    answered rightly, one may conclude (N + 1) / (N + 2) and not certainty, towards which the plain
    likelihood would sharpen without end; the rest goes to the strongest other class. Raises
    ValueError when the scores are not finite or do not fit the truth.
    """
    from scipy.optimize import minimize_scalar

    scores_NC = np.asarray(scores_NC, dtype=np.float64)
    if scores_NC.ndim != 2 or len(scores_NC) == 0 or truth_N.shape != scores_NC.shape[:1]:
        raise ValueError(
            f"need scores (N, C) and truth (N), got {scores_NC.shape}, {truth_N.shape}"
        )
    if not np.isfinite(scores_NC).all():
        raise ValueError("scores must be finite: take log_softmax, not the log of probabilities")
    images_N, doubt = np.arange(len(truth_N)), 1 / (len(truth_N) + 2)
    others_NC = scores_NC.copy()
    others_NC[images_N, truth_N] = -np.inf
    rival_N = others_NC.argmax(axis=1)

    def loss(log_temperature: float) -> float:
        log_NC = _log_softmax(scores_NC / math.exp(log_temperature))
        own_N, beside_N = log_NC[images_N, truth_N], log_NC[images_N, rival_N]
        return float(-((1 - doubt) * own_N + doubt * beside_N).mean())

    # The loss is convex in 1/T, so it has one valley in log T as well, where the scale is even.
    bounds = (math.log(COLDEST), math.log(HOTTEST))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return float(np.clip(math.exp(found.x), COLDEST, HOTTEST))


def apply_temperature(scores_NC: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """Return probabilities_NC of logits or log-probabilities; the ranking of classes stays."""
    if not temperature > 0:
        raise ValueError(f"a temperature must be above 0, got {temperature}")
    return np.exp(_log_softmax(np.asarray(scores_NC, dtype=np.float64) / temperature))


def _log_softmax(scores_NC: NDArray[np.floating]) -> NDArray[np.float64]:
    from scipy.special import log_softmax

    result_NC: NDArray[np.float64] = log_softmax(scores_NC, axis=-1)
    return result_NC
