"""Evidence for and against a pair: the numbers that the learned acceptance weighs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.alignment import (
    FINE,
    FINE_NOISE,
    FINE_WINDOW,
    NOISE,
    WINDOW,
    Aligned,
    local_correlation,
)
from skindx.data.copies.beneath import beneath
from skindx.data.copies.describe import Description
from skindx.data.copies.geometry import Model
from skindx.data.copies.overlap import away, both, closed, consent, shown_points, tone, void

# F = features, I = inliers, H, W = sides of the frame

FEATURES = (
    "inliers",
    "unique",
    "rate",
    "spread",
    "ncc",
    "low",
    "agree",
    "fine",
    "outside",
    "covered",
    "consent",
    "whole",
    "tone",
    "void",
    "closed",
    "beneath",
)
_LEAST_TEXTURE = 30.0
"""Sum of weights from which on a part of the overlap has a say."""


@dataclass(frozen=True)
class Evidence:
    """One model of a pair, laid on each other and measured."""

    model: Model
    aligned: Aligned
    features_F: NDArray[np.float64]

    def __getitem__(self, name: str) -> float:
        return float(self.features_F[FEATURES.index(name)])


def measure(first: Description, second: Description, model: Model, aligned: Aligned) -> Evidence:
    """Measure one model; the order of the features is FEATURES."""
    import cv2

    pair = both(aligned)
    ncc_HW, weight_HW = local_correlation(*pair, aligned.shown_HW, WINDOW, NOISE)
    first_HW, second_HW = (field - cv2.GaussianBlur(field, (0, 0), FINE) for field in pair)
    fine_HW, fine_weight_HW = local_correlation(
        first_HW, second_HW, aligned.shown_HW, FINE_WINDOW, FINE_NOISE
    )
    at_I2 = model.from_I2 @ aligned.to_frame_23[:, :2].T + aligned.to_frame_23[:, 2]
    away_HW = away(at_I2, (ncc_HW.shape[0], ncc_HW.shape[1]))
    ncc = _mean(ncc_HW, weight_HW)
    away_weight_HW = weight_HW * away_HW
    outside = _mean(ncc_HW, away_weight_HW) if away_weight_HW.sum() > _LEAST_TEXTURE else ncc
    shown = max(1.0, float(aligned.shown_HW.sum()))
    visible = min(
        _visible(first, aligned, to_first=True), _visible(second, aligned, to_first=False)
    )
    features = (
        np.log(model.inliers / 8),
        np.log((1 + model.unique) / 4),
        model.inliers / max(model.inliers, visible),
        np.sqrt(_hull(at_I2) / shown),
        ncc,
        _quantile(ncc_HW, weight_HW, 0.15),
        _mean((ncc_HW > 0.5).astype(np.float32), weight_HW),
        _mean(fine_HW, fine_weight_HW),
        outside,
        aligned.covered,
        *consent(first, second, aligned, at_I2, (ncc_HW, weight_HW)),
        tone(aligned, at_I2),
        -void(first, second, aligned, at_I2),
        closed(at_I2, (ncc_HW.shape[0], ncc_HW.shape[1])),
        beneath(aligned),
    )
    return Evidence(model, aligned, np.array(features, np.float64))


def _mean(value_HW: NDArray[np.float32], weight_HW: NDArray[np.float32]) -> float:
    return float((value_HW * weight_HW).sum() / (weight_HW.sum() + _LEAST_TEXTURE))


def _quantile(value_HW: NDArray[np.float32], weight_HW: NDArray[np.float32], share: float) -> float:
    """Return the value below which `share` of the weight lies; 0 without weight."""
    value, weight = value_HW[::3, ::3].ravel(), weight_HW[::3, ::3].ravel()
    if weight.sum() * 9 < _LEAST_TEXTURE:
        return 0.0
    order = np.argsort(value, kind="stable")
    below = np.cumsum(weight[order])
    return float(value[order][np.searchsorted(below, share * below[-1])])


def _hull(at_I2: NDArray[np.float64]) -> float:
    import cv2

    return float(cv2.contourArea(cv2.convexHull(at_I2.astype(np.float32))))


def _visible(image: Description, aligned: Aligned, *, to_first: bool) -> int:
    """Return how many places with points of an image the overlap shows."""
    at_P2 = shown_points(image, aligned, to_first=to_first) // 3
    return len(np.unique(at_P2[:, 1] * 4096 + at_P2[:, 0]))
