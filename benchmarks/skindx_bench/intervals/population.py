"""Populations of simulated predictions, with and without groups of alike images."""

from dataclasses import dataclass

import numpy as np

from skindx.metrics.share_intervals import Floats, Ints

# N = images, C = classes

_CLASSES = 4
_SHARES_C = np.array([0.5, 0.25, 0.15, 0.1])
_ALIKE = 0.7
"""Share of a group's noise that its images have in common."""


@dataclass(frozen=True)
class Sample:
    """A simulated test split: two predictors of the same images."""

    probabilities_NC: Floats
    other_NC: Floats
    truth_N: Ints
    groups_N: Ints


def _logits(random: np.random.Generator, truth_N: Ints, index_N: Ints, signal: float) -> Floats:
    groups = int(index_N.max()) + 1
    common_NC = random.standard_normal((groups, _CLASSES))[index_N]
    own_NC = random.standard_normal((len(truth_N), _CLASSES))
    noise_NC = np.sqrt(_ALIKE) * common_NC + np.sqrt(1 - _ALIKE) * own_NC
    logits_NC: Floats = signal * np.eye(_CLASSES)[truth_N] + noise_NC
    return logits_NC


def _posterior(logits_NC: Floats, signal: float, scale: float) -> Floats:
    """Return P(class | logits) for Gaussian noise of variance 1, sharpened by `scale`."""
    scores_NC = scale * (signal * logits_NC + np.log(_SHARES_C))
    scores_NC -= scores_NC.max(axis=1, keepdims=True)
    shares_NC = np.exp(scores_NC)
    probabilities_NC: Floats = shares_NC / shares_NC.sum(axis=1, keepdims=True)
    return probabilities_NC


POPULATIONS: dict[str, tuple[tuple[float, float], str]] = {
    "calibrated": ((2.0, 1.0), "calibrated, about 80 % right"),
    "overconfident": ((2.0, 2.0), "the same, twice as sure as it should be"),
    "excellent": ((3.8, 1.0), "calibrated, about 99 % right"),
}
"""Name -> (signal, sharpening), and what it is."""


def draw(population: str, size: int, *, grouped: bool, seed: int) -> Sample:
    """Draw `size` images, alone or in groups of one to four that share class and noise."""
    (signal, scale), _ = POPULATIONS[population]
    random = np.random.default_rng(seed)
    index_N = np.arange(size)
    if grouped:
        index_N = np.repeat(np.arange(size), random.choice([1, 1, 1, 2, 3, 4], size))[:size]
    truth_N = random.choice(_CLASSES, size=int(index_N.max()) + 1, p=_SHARES_C)[index_N]
    logits_NC = _logits(random, truth_N, index_N, signal)
    other_NC = np.sqrt(0.7) * logits_NC + np.sqrt(0.3) * _logits(random, truth_N, index_N, signal)
    return Sample(
        _posterior(logits_NC, signal, scale),
        _posterior(other_NC / (np.sqrt(0.7) + np.sqrt(0.3)), signal, scale),
        truth_N,
        index_N,
    )
