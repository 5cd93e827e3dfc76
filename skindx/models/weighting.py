"""Weights of members from validation pictures: by likelihood, or by greedy selection."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skindx.models.combination import Combination, log, pool

# M = members, N = pictures, C = classes

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]

Space = Literal["probability", "logit"]


def fit_weights(member_MNC: Floats, truth_N: Ints, space: Space, prior: float) -> Floats:
    """Return the weights on the simplex that make the truth likeliest, shrunk to equal ones.

    `prior` counts as so many pictures that speak for equal weights (a Dirichlet prior: the
    penalty is its size times the divergence of the weights from equal ones), so that few
    validation pictures move them little. Both likelihoods are concave on the simplex.
    """
    from scipy.optimize import minimize
    from scipy.special import softmax

    members, pictures = len(member_MNC), len(truth_N)
    gain = _LIKELIHOODS[space](member_MNC, truth_N)

    def loss(logits_M: Floats) -> tuple[float, Floats]:
        weights_M = softmax(logits_M)
        likelihood, slope_M = gain(weights_M)
        value = likelihood + prior * np.log(weights_M).mean()
        # Through the softmax: d/dlogit = w (slope - mean slope), and the prior's own part.
        change_M = weights_M * (slope_M - weights_M @ slope_M) + prior * (1 / members - weights_M)
        return -value / (pictures + prior), -change_M / (pictures + prior)

    options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9}
    found = minimize(  # type: ignore[call-overload]
        loss, np.zeros(members), jac=True, method="L-BFGS-B", options=options
    )
    weights_M: Floats = softmax(found.x)
    return weights_M


_Likelihood = Callable[[Floats], tuple[float, Floats]]


def _of_probabilities(member_MNC: Floats, truth_N: Ints) -> _Likelihood:
    own_MN = np.maximum(member_MNC[:, np.arange(len(truth_N)), truth_N], 1e-300)

    def gain(weights_M: Floats) -> tuple[float, Floats]:
        mixed_N = weights_M @ own_MN
        return float(np.log(mixed_N).sum()), (own_MN / mixed_N).sum(axis=1)

    return gain


def _of_logits(member_MNC: Floats, truth_N: Ints) -> _Likelihood:
    from scipy.special import log_softmax

    log_MNC = log(member_MNC)
    rows_N = np.arange(len(truth_N))
    own_MN = log_MNC[:, rows_N, truth_N]

    def gain(weights_M: Floats) -> tuple[float, Floats]:
        mixed_NC = log_softmax(np.tensordot(weights_M, log_MNC, axes=1), axis=1)
        expected_M = np.einsum("nc,mnc->m", np.exp(mixed_NC), log_MNC)
        return float(mixed_NC[rows_N, truth_N].sum()), own_MN.sum(axis=1) - expected_M

    return gain


_LIKELIHOODS: dict[Space, Callable[[Floats, Ints], _Likelihood]] = {
    "probability": _of_probabilities,
    "logit": _of_logits,
}


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
            _mean_log(member_MNC, truth_N, space, counts_M + np.eye(members)[m])
            for m in range(members)
        ]
        counts_M[int(np.argmax(with_each))] += 1
        if max(with_each) > best:
            best, best_M = max(with_each), counts_M / counts_M.sum()
    return best_M


def _mean_log(member_MNC: Floats, truth_N: Ints, space: Space, counts_M: Floats) -> float:
    chosen = counts_M > 0
    weights = tuple(counts_M[chosen] / counts_M.sum())
    pooled_NC = pool(member_MNC[chosen], Combination(rule=space, weights=weights))
    return float(log(pooled_NC)[np.arange(len(truth_N)), truth_N].mean())
