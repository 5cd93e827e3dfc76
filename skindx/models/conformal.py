"""Conformal sets: the classes that a picture may show, right at a promised rate."""

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from skindx.config import Settings

LEVEL = 0.9
ALL = "all"

# N = pictures, C = classes


class Conformal(Settings):
    """Split-conformal sets by the least ambiguous rule (LAC; Sadinle, Lei and Wasserman 2019).

    A set holds every class of at least the threshold's probability, and always the likeliest one.
    Of all rules with the same coverage this one gives the smallest sets on average; it draws no
    lots, so that a picture has the same set each time, and its one number can be told to a reader.
    Its price is that coverage is promised over all pictures and not for each class; that is what
    adaptive rules (APS, RAPS) lessen with larger sets, and thresholds by group do away with.
    """

    level: float = Field(LEVEL, gt=0, lt=1)
    """The share of pictures whose set holds the true class."""
    pictures: int = Field(ge=0)
    """Calibration pictures that the thresholds were fitted on."""
    thresholds: dict[str, float]
    """Least probability of a class in a set, by group of pictures; `all` is any picture's."""

    @model_validator(mode="after")
    def _has_one_for_all(self) -> "Conformal":
        if ALL not in self.thresholds:
            raise ValueError(f"thresholds must hold {ALL!r}, the one for any picture")
        for group, threshold in self.thresholds.items():
            if not 0 <= threshold <= 1:
                raise ValueError(f"the threshold of {group} must be in 0..1, not {threshold}")
        return self

    @property
    def least_probability(self) -> float:
        """The threshold of any picture; 0 puts every class into every set."""
        return self.thresholds[ALL]

    def sets(self, probabilities_NC: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which classes are in each picture's set, N x C."""
        sets_NC: NDArray[np.bool_] = probabilities_NC >= self.least_probability
        sets_NC[np.arange(len(sets_NC)), probabilities_NC.argmax(axis=1)] = True
        return sets_NC


def fit_conformal(
    probabilities_NC: NDArray[np.float64], truth_N: NDArray[np.integer], level: float = LEVEL
) -> Conformal:
    """Fit the threshold on calibration pictures, which nothing else was chosen or fitted on.

    Of n true classes' probabilities it is the ceil((n + 1) level)-th greatest: with this
    correction a new picture's set holds its true class with at least the probability `level`,
    if it is drawn as those were (Vovk et al. 2005). Too few pictures for the level, 8 or fewer
    at 0.9, put every class into every set. Raises ValueError for what does not fit.
    """
    if probabilities_NC.ndim != 2 or truth_N.shape != probabilities_NC.shape[:1]:
        raise ValueError(
            f"need probabilities (N, C) and truth (N), got {probabilities_NC.shape}, "
            f"{truth_N.shape}"
        )
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("probabilities must be finite")
    n = len(truth_N)
    # Rounded first: (9 + 1) * 0.9 is 9, and not a hair above it.
    place = math.ceil(round((n + 1) * level, 9))
    own_N = np.sort(probabilities_NC[np.arange(n), truth_N])[::-1]
    threshold = float(own_N[place - 1]) if place <= n else 0.0
    return Conformal(level=level, pictures=n, thresholds={ALL: threshold})
