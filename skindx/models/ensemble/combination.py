"""How members are combined: by the mean of probabilities or logits, or by vote."""

import math
from collections.abc import Callable
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from skindx.core.settings_base import Settings
from skindx.models.calibration.temperature import apply_temperature

# M = members, N = images, C = classes

Floats = NDArray[np.float64]

Rule = Literal["probability", "logit", "vote"]


class Combination(Settings):
    """A rule, and each member's weight on the simplex (none: all weigh the same)."""

    rule: Rule = "probability"
    weights: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _on_the_simplex(self) -> Self:
        weights = self.weights
        if weights is not None and not (
            weights and min(weights) >= 0 and math.isclose(sum(weights), 1, abs_tol=1e-6)
        ):
            raise ValueError("weights must not be negative and must sum to 1")
        return self


EQUAL = Combination()
"""The plain mean of probabilities."""


def combine(member_MNC: Floats, temperature: float, combination: Combination = EQUAL) -> Floats:
    """Pool the members' calibrated probabilities and apply the ensemble's own temperature.

    Averaging makes calibrated members under-confident, so the mean is calibrated again.
    """
    return apply_temperature(log(pool(member_MNC, combination)), temperature)


def pool(member_MNC: Floats, combination: Combination) -> Floats:
    """Return one distribution N x C for the members' M x N x C."""
    weights = combination.weights
    if weights is not None and len(weights) != len(member_MNC):
        raise ValueError(f"{len(weights)} weights for {len(member_MNC)} members")
    return _RULES[combination.rule](member_MNC, weights)


def log(probabilities: Floats) -> Floats:
    """Return the natural logarithm, finite also for a probability that underflowed to zero."""
    return np.log(np.maximum(probabilities, 1e-300))


def mutual_information(member_MNC: Floats, weights: tuple[float, ...] | None = None) -> Floats:
    """Return how much the members contradict each other, N, in shares of the most that they could.

    The mutual information of the class and the member who is asked, H(mean) - mean H (Houlsby et
    al. 2011, equation 2), over the entropy of the weights: 0 when all say the same, however
    unsure, and 1 when each is sure of another class. With a single member: 0.
    """
    members = len(member_MNC)
    weights_M = np.full(members, 1 / members) if weights is None else np.array(weights)
    most = _entropy(weights_M)
    if most <= 0:
        return np.zeros(member_MNC.shape[1])
    mean_NC = np.average(member_MNC, axis=0, weights=weights_M)
    within_N = np.average(_entropy(member_MNC), axis=0, weights=weights_M)
    share_N: Floats = np.clip((_entropy(mean_NC) - within_N) / most, 0, 1)
    return share_N


def _entropy(probabilities: Floats) -> Floats:
    entropy: Floats = -(probabilities * log(probabilities)).sum(axis=-1)
    return entropy


def _mean(member_MNC: Floats, weights: tuple[float, ...] | None) -> Floats:
    if weights is None:
        mean_NC: Floats = member_MNC.mean(axis=0)
        return mean_NC
    return np.asarray(np.average(member_MNC, axis=0, weights=weights))


def _log_mean(member_MNC: Floats, weights: tuple[float, ...] | None) -> Floats:
    """Average log-probabilities: the members' logits, up to a constant that softmax takes away."""
    return apply_temperature(_mean(log(member_MNC), weights), 1.0)


def _vote(member_MNC: Floats, weights: tuple[float, ...] | None) -> Floats:
    """Return shares of the votes, to which the mean probability adds one vote.

    That vote decides ties, cannot overturn a majority of equals, and keeps a class that no member
    puts first from being called impossible.
    """
    members, _, classes = member_MNC.shape
    votes_NC = members * _mean(np.eye(classes)[member_MNC.argmax(axis=2)], weights)
    shares_NC: Floats = (votes_NC + _mean(member_MNC, weights)) / (members + 1)
    return shares_NC


_RULES: dict[Rule, Callable[[Floats, tuple[float, ...] | None], Floats]] = {
    "probability": _mean,
    "logit": _log_mean,
    "vote": _vote,
}
