"""Measures of an order of the images: sorted once, then weighted sums along it for each draw."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from skindx.metrics.inputs import Bools, Floats, Ints, check
from skindx.metrics.measure import Measure, Redraw

# N = images, C = classes, G = groups, D = bootstrap draws
# P = images of a class, M = images of the others


@dataclass(frozen=True, slots=True)
class Ranked(Measure):
    """A measure of N images: `weigh` turns their weights (D, N) into values (D,)."""

    weigh: Callable[[Floats], Floats]
    images: int
    low: float = 0.0
    high: float = 1.0
    biased: bool = False
    strata: Ints | None = None

    def redraw(self, index_N: Ints, groups: int) -> Redraw:
        """Give each image the weight of its group."""
        return lambda weights_DG: self.weigh(weights_DG[:, index_N])

    @classmethod
    def auroc(cls, probabilities_NC: Floats, truth_N: Ints) -> "Ranked":
        """Mean over classes of the area under the ROC curve of one class against the rest.

        That is the chance that an image of the class has the greater probability of it than one
        of another class, ties counting half (Hanley and McNeil 1982). Classes without an image,
        or without an image of another class, have no area and are left out.
        """
        check(probabilities_NC, truth_N)
        own_NC = np.eye(probabilities_NC.shape[1], dtype=bool)[truth_N]
        areas = [
            _area(scores_N, own_N)
            for scores_N, own_N in zip(probabilities_NC.T, own_NC.T, strict=True)
            if own_N.any() and not own_N.all()
        ]

        def weigh(weights_DN: Floats) -> Floats:
            total_D, defined_D = np.zeros(len(weights_DN)), np.zeros(len(weights_DN))
            for area in areas:
                area_D = area(weights_DN)
                total_D += np.nan_to_num(area_D)
                defined_D += np.isfinite(area_D)
            return _divide(total_D, defined_D)

        return cls(weigh, len(truth_N), strata=truth_N)

    @classmethod
    def selective_risk_area(cls, probabilities_NC: Floats, truth_N: Ints) -> "Ranked":
        """Mean error of the images at least as confident as one of them, over all of them.

        The area under the risk-coverage curve (AURC; Geifman, Uziel and El-Yaniv 2019): small when
        the errors are where the confidence is low, so that leaving those to a person pays.
        """
        check(probabilities_NC, truth_N)
        order_N, end_N = by_confidence(probabilities_NC)
        wrong_N = (probabilities_NC.argmax(axis=1) != truth_N)[order_N]

        def weigh(weights_DN: Floats) -> Floats:
            sorted_DN = weights_DN[:, order_N]
            wrong_DN = (sorted_DN * wrong_N).cumsum(axis=1)[:, end_N]
            risk_DN = _divide(wrong_DN, sorted_DN.cumsum(axis=1)[:, end_N])
            # Nothing is drawn yet where the risk is not defined, so its weight there is nought.
            area_D: Floats = (sorted_DN * np.nan_to_num(risk_DN)).sum(axis=1) / sorted_DN.sum(
                axis=1
            )
            return area_D

        return cls(weigh, len(truth_N))


def by_confidence(probabilities_NC: Floats) -> tuple[Ints, Ints]:
    """Return the images, most confident first, and for each place the last one of equals."""
    confidence_N = probabilities_NC.max(axis=1)
    order_N = np.argsort(-confidence_N, kind="stable")
    rising_N = np.sort(-confidence_N)
    return order_N, np.searchsorted(rising_N, rising_N, side="right") - 1


def _area(scores_N: Floats, own_N: Bools) -> Callable[[Floats], Floats]:
    """Return the function of weights_DN to the area of one class against the rest."""
    own_P, others = np.flatnonzero(own_N), np.flatnonzero(~own_N)
    others_M = others[np.argsort(scores_N[others], kind="stable")]
    below_P = np.searchsorted(scores_N[others_M], scores_N[own_P], side="left")
    up_to_P = np.searchsorted(scores_N[others_M], scores_N[own_P], side="right")

    def area(weights_DN: Floats) -> Floats:
        weights_DP = weights_DN[:, own_P]
        rising = np.zeros((len(weights_DN), len(others_M) + 1))
        np.cumsum(weights_DN[:, others_M], axis=1, out=rising[:, 1:])
        beaten_DP = (rising[:, below_P] + rising[:, up_to_P]) / 2
        return _divide((weights_DP * beaten_DP).sum(axis=1), weights_DP.sum(axis=1) * rising[:, -1])

    return area


def _divide(part: Floats, whole: Floats) -> Floats:
    share = np.full(np.broadcast_shapes(part.shape, whole.shape), np.nan)
    np.divide(part, whole, out=share, where=whole > 0)
    return share
