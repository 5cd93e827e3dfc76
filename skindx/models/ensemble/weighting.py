"""Weights of members from validation images: by likelihood, or by greedy selection.

What is judged is the pool after its own temperature, as it will be served: at temperature 1 the
mean of good members looks worse than one of them, only because averaging makes it less sure.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skindx.models.calibration.temperature import COLDEST, HOTTEST
from skindx.models.ensemble.combination import Combination, log, pool

# M = members, N = images, C = classes

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]

Space = Literal["probability", "logit"]

_SHARPNESS = tuple(np.geomspace(1, 2.8, 5).tolist())
"""Inverse temperatures that greedy selection tries; the mean of members is never too sure."""


def fit_weights(member_MNC: Floats, truth_N: Ints, space: Space, prior: float) -> Floats:
    """Return the weights on the simplex that make the truth likeliest, shrunk to equal ones.

    Weights and temperature are fitted together. `prior` counts as so many images that support
    equal weights (a Dirichlet prior: the penalty is its size times the divergence of the weights
    from equal ones), so that few validation images move them little.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax, softmax

    members, images, classes = member_MNC.shape
    log_MNC, truth_NC = log(member_MNC), np.eye(classes)[truth_N]

    def loss(inputs: Floats) -> tuple[float, Floats]:
        weights_M, sharpness = softmax(inputs[:-1]), math.exp(inputs[-1])
        if space == "logit":
            scores_NC, slopes_MNC = np.tensordot(weights_M, log_MNC, axes=1), log_MNC
        else:
            mixed_NC = np.maximum(np.tensordot(weights_M, member_MNC, axes=1), 1e-300)
            scores_NC, slopes_MNC = np.log(mixed_NC), member_MNC / mixed_NC
        log_NC = log_softmax(sharpness * scores_NC, axis=1)
        value = (truth_NC * log_NC).sum() + prior * np.log(weights_M).mean()
        residual_NC = sharpness * (truth_NC - np.exp(log_NC))
        slope_M = np.einsum("mnc,nc->m", slopes_MNC, residual_NC)
        # Through the softmax: d/dinput = w (slope - mean slope), and the prior's own part.
        change_M = weights_M * (slope_M - weights_M @ slope_M) + prior * (1 / members - weights_M)
        change = np.append(change_M, (scores_NC * residual_NC).sum())
        return -value / (images + prior), -change / (images + prior)

    found = minimize(
        loss,
        np.zeros(members + 1),
        jac=True,
        method="L-BFGS-B",
        bounds=[(None, None)] * members + [(-math.log(HOTTEST), -math.log(COLDEST))],
        options={"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9},
    )
    weights_M: Floats = softmax(found.x[:-1])
    return weights_M


def select_greedily(member_MNC: Floats, truth_N: Ints, space: Space, rounds: int) -> Floats:
    """Return weights in steps of one over the rounds used: often zero, so that members drop out.

    Ensemble selection with replacement (Caruana et al. 2004, section 2): each round adds the
    member, perhaps again, with which the mean makes the truth likeliest; the best of all rounds
    stays, the earliest of equals.
    """
    members = len(member_MNC)
    counts_M, best_M, best = np.zeros(members), np.zeros(members), -np.inf
    for _ in range(rounds):
        with_each = [
            _likelihood(member_MNC, truth_N, space, counts_M + np.eye(members)[m])
            for m in range(members)
        ]
        counts_M[int(np.argmax(with_each))] += 1
        if max(with_each) > best + 1e-12:  # more rounds of the same mean are no gain
            best, best_M = max(with_each), counts_M / counts_M.sum()
    return best_M


def _likelihood(member_MNC: Floats, truth_N: Ints, space: Space, counts_M: Floats) -> float:
    from scipy.special import log_softmax

    chosen = counts_M > 0
    weights = tuple(counts_M[chosen] / counts_M.sum())
    scores_NC = log(pool(member_MNC[chosen], Combination(rule=space, weights=weights)))
    rows_N = np.arange(len(truth_N))
    return max(
        float(log_softmax(sharpness * scores_NC, axis=1)[rows_N, truth_N].mean())
        for sharpness in _SHARPNESS
    )
