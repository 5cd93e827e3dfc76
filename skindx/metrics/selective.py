"""Accuracy against coverage when the least confident images are left to a person."""

from dataclasses import dataclass

import numpy as np

from skindx.metrics.inputs import Floats, Ints, check
from skindx.metrics.ranked import by_confidence


@dataclass(frozen=True, slots=True)
class RiskPoint:
    """Answering the share `coverage` of the images, those of at least `confidence`."""

    coverage: float
    risk: float
    """Share of wrong answers among those given."""
    confidence: float


def risk_curve(probabilities_NC: Floats, truth_N: Ints, steps: int = 20) -> tuple[RiskPoint, ...]:
    """Return the risk-coverage curve (El-Yaniv and Wiener 2010) at about `steps` coverages.

    Images of equal confidence are answered together; the last point answers all.
    """
    check(probabilities_NC, truth_N)
    order_N, end_N = by_confidence(probabilities_NC)
    wrong_N = (probabilities_NC.argmax(axis=1) != truth_N)[order_N].cumsum()
    confidence_N = probabilities_NC.max(axis=1)[order_N]
    n = len(truth_N)
    wanted = np.ceil(np.arange(1, steps + 1) * n / steps).astype(int) - 1
    return tuple(
        RiskPoint((end + 1) / n, float(wrong_N[end] / (end + 1)), float(confidence_N[end]))
        for end in (int(place) for place in np.unique(end_N[wanted]))
    )
