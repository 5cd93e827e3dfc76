"""The learned acceptance: a logistic regression on what a pair shows, weights in a JSON.

`learn.acceptance` fits it to planted pairs of painted images, so that no foreign licence is in it.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.evidence import FEATURES

# F = features, T = terms: the features, and the products of pairs of them

FILE = Path(__file__).parent / "acceptance.json"


@dataclass(frozen=True)
class Acceptance:
    """probability = 1 / (1 + exp(-(weights . terms + bias)))."""

    weights_T: NDArray[np.float64]
    bias: float

    def probability(self, features_F: NDArray[np.float64]) -> float:
        """Return how likely a pair with these features is one image, rounded to 1e-6."""
        logit = float(terms(features_F[None])[0] @ self.weights_T + self.bias)
        return round(float(1 / (1 + np.exp(-np.clip(logit, -40, 40)))), 6)


def terms(features_NF: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return terms_NT: each feature, clipped to its range."""
    low_F, high_F = np.array([RANGES[name] for name in FEATURES]).T
    return np.clip(features_NF, low_F, high_F)


RANGES = {
    "inliers": (-0.7, 0.8),
    "unique": (-1.4, 2.0),
    "rate": (0.0, 0.6),
    "spread": (0.0, 0.9),
    "ncc": (0.0, 1.0),
    "low": (-0.5, 0.9),
    "agree": (0.0, 1.0),
    "fine": (-0.1, 0.6),
    "outside": (0.0, 1.0),
    "covered": (0.2, 1.0),
    "consent": (0.0, 1.0),
    "whole": (0.5, 1.0),
    "tone": (0.2, 1.0),
    "void": (-40.0, -12.0),
    "closed": (0.5, 1.0),
    "beneath": (0.5, 0.75),
}
"""Beyond these a feature says no more."""


@cache
def shipped() -> Acceptance:
    """Return the acceptance of the package."""
    read = json.loads(FILE.read_text(encoding="utf-8"))
    weights_T = np.array([read["weights"][name] for name in FEATURES], np.float64)
    return Acceptance(weights_T, read["bias"])
