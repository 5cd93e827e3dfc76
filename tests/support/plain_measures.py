"""Measures of probabilities as plain numbers, for tests that need no interval."""

import numpy as np
from numpy.typing import NDArray

from skindx.metrics import Ranked, Statistic

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]


def top_k_accuracy(probabilities_NC: Floats, truth_N: Ints, k: int = 1) -> float:
    return Statistic.top_k(probabilities_NC, truth_N, k).value


def expected_calibration_error(probabilities_NC: Floats, truth_N: Ints, bins: int = 15) -> float:
    return Statistic.calibration_error(probabilities_NC, truth_N, bins).value


def brier_score(probabilities_NC: Floats, truth_N: Ints) -> float:
    return Statistic.brier(probabilities_NC, truth_N).value


def macro_f1(probabilities_NC: Floats, truth_N: Ints) -> float:
    return Statistic.macro_f1(probabilities_NC, truth_N).value


def auroc(probabilities_NC: Floats, truth_N: Ints) -> float:
    return Ranked.auroc(probabilities_NC, truth_N).value
