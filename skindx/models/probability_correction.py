"""Probabilities corrected: by a temperature, and for another mix of diseases."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.untrusted import read_plain_yaml
from skindx.taxonomy import Taxonomy

COLDEST, HOTTEST = 0.05, 20.0

# N = images, C = classes


def fit_temperature(
    scores_NC: NDArray[np.floating],
    truth_N: NDArray[np.integer],
    log_shifts_C: NDArray[np.floating] | float = 0.0,
) -> float:
    """Return the temperature in [0.05, 20] with the least negative log-likelihood.

    Confidence then means what it says (Guo et al. 2017, section 4.2).

    `scores_NC` are logits or log-probabilities of validation images; both give the same
    temperature. The targets are smoothed as by Platt (1999, section 2.2): N images, all answered
    rightly, support (N + 1) / (N + 2) and not certainty, to which the plain likelihood would
    sharpen without end; the rest goes to the strongest other class. `log_shifts_C` are added after
    the temperature, for another mix of classes. Raises ValueError for scores
    that are not finite or do not fit the truth.
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
    rivals_NC = scores_NC + log_shifts_C
    rivals_NC[images_N, truth_N] = -np.inf
    rival_N = rivals_NC.argmax(axis=1)

    def loss(log_temperature: float) -> float:
        log_NC = _log_softmax(scores_NC / math.exp(log_temperature) + log_shifts_C)
        true_N, other_N = log_NC[images_N, truth_N], log_NC[images_N, rival_N]
        return float(-((1 - doubt) * true_N + doubt * other_N).mean())

    # The loss is convex in 1/T, so it has one valley in log T as well, where the scale is even.
    bounds = (math.log(COLDEST), math.log(HOTTEST))
    minimum = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return float(np.clip(math.exp(minimum.x), COLDEST, HOTTEST))


def apply_temperature(scores_NC: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """Return probabilities_NC of logits or log-probabilities; the ranking of classes stays."""
    if not temperature > 0:
        raise ValueError(f"a temperature must be above 0, got {temperature}")
    return np.exp(_log_softmax(np.asarray(scores_NC, dtype=np.float64) / temperature))


def shifted(
    scores_NC: NDArray[np.floating], log_shifts_C: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return probabilities_NC of log-probabilities, with a term of each class added to them."""
    return np.exp(_log_softmax(np.asarray(scores_NC, dtype=np.float64) + log_shifts_C))


def _log_softmax(scores_NC: NDArray[np.floating]) -> NDArray[np.float64]:
    from scipy.special import log_softmax

    result_NC: NDArray[np.float64] = log_softmax(scores_NC, axis=-1)
    return result_NC


_SUM_SLACK = 0.005
"""Shares with few digits do not add up to 1 exactly."""


@dataclass(frozen=True)
class Prevalence:
    """The mix of diseases that an operator sees, beside that of the calibration images."""

    shares_C: tuple[float, ...]
    """In the order of the taxonomy; they sum to 1."""
    calibration_C: tuple[float, ...]
    """The same of the calibration images."""

    @classmethod
    def of(cls, given: Mapping[str, float], counts: Mapping[str, int] | None) -> Self:
        """Take a share of each class, and the number of its calibration images.

        A class counts as one image more than there was: none is impossible because none was there.
        Raises UserError for a bundle that does not say how many there were.
        """
        if counts is None:
            raise UserError(
                "the bundle does not say how many calibration images each class had, so its "
                "probabilities cannot be corrected for another prevalence; pack it again with this "
                "version, or leave out --prevalence."
            )
        shares_C = np.array([given[key] for key in counts], np.float64)
        counts_C = np.array([*counts.values()], np.float64) + 1
        return cls(tuple(shares_C / shares_C.sum()), tuple(counts_C / counts_C.sum()))

    def correct(self, probabilities_NC: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities for the operator's mix; rows sum to 1.

        By Bayes' rule the probability of a class changes by the ratio of its shares in both mixes
        (Saerens, Latinne and Decaestecker 2002, "Adjusting the outputs of a classifier to new a
        priori probabilities", equation 4), if a disease looks the same in both.
        """
        weighed_NC = probabilities_NC * (np.array(self.shares_C) / np.array(self.calibration_C))
        corrected_NC: NDArray[np.float64] = weighed_NC / weighed_NC.sum(axis=-1, keepdims=True)
        return corrected_NC


def read_prevalence(path: Path, taxonomy: Taxonomy) -> dict[str, float]:
    """Return the share of each class, by its key in the order of the taxonomy.

    The file is YAML or JSON with a line `class: share` for each class, by its key, name or a
    synonym. Raises UserError for what is no such file, and for shares that are none.
    """
    given: dict[str, float] = {}
    for label, value in read_plain_yaml(path).items():
        skin_class = taxonomy.find(str(label))
        if skin_class is None:
            raise UserError(
                f"{path}: {str(label)[:60]!r} is no class of this bundle; its classes are "
                f"{', '.join(taxonomy.keys[:20])}{' …' if len(taxonomy.keys) > 20 else ''}."
            )
        if skin_class.key in given:
            raise UserError(f"{path} names {skin_class.key} twice; keep one of the two lines.")
        given[skin_class.key] = _share(path, skin_class.key, value)
    missing = [key for key in taxonomy.keys if key not in given]
    if missing:
        raise UserError(
            f"{path} has no share of {', '.join(missing[:10])}{' …' if len(missing) > 10 else ''}; "
            "give one for each class."
        )
    total = math.fsum(given.values())
    if abs(total - 1) > _SUM_SLACK:
        raise UserError(
            f"{path}: the shares sum to {total:.4g}, not to 1; give the share of each class among "
            "all photos that are seen, such as 0.02 for 2 %."
        )
    return {key: given[key] for key in taxonomy.keys}


def _share(path: Path, key: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:
        raise UserError(
            f"{path}: the share of {key} is {str(value)[:40]!r}; give a number above 0 and at most "
            "1, a small one for a class that is rare, since none is impossible."
        )
    return float(value)
