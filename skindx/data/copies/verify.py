"""Verification of a pair: its evidence under the best alignment, weighed by a learned acceptance.

A pair is accepted by what it shows itself: by the same evidence in every pool, shard and build. The
acceptance is a logistic regression on that evidence, with its weights in a JSON. It is fitted to
planted pairs of synthetic images, so that no foreign licence is in it.
"""

import dataclasses
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.describe import Description
from skindx.data.copies.geometry import (
    FINE,
    FINE_NOISE,
    FINE_WINDOW,
    NOISE,
    WINDOW,
    Aligned,
    AlignmentModel,
    align,
    local_correlation,
    models_of,
)
from skindx.data.copies.overlap import (
    away,
    beneath,
    both,
    closed,
    consent,
    shown_points,
    tone,
    void,
)
from skindx.data.copies.whole_frame import SamePicture, same_picture

# F = features, T = terms: the features, each clipped to its range, I = inliers,
# H, W = sides of the frame


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
"""Range of each feature of a pair; values beyond it are clipped."""
FEATURES = tuple(RANGES)
_LEAST_TEXTURE = 30.0
"""Sum of weights from which on a part of the overlap counts."""


@dataclass(frozen=True)
class PairEvidence:
    """One model of a pair, laid on each other and measured."""

    model: AlignmentModel
    aligned: Aligned
    features_F: NDArray[np.float64]

    def __getitem__(self, name: str) -> float:
        return float(self.features_F[FEATURES.index(name)])


def measure(
    first: Description, second: Description, model: AlignmentModel, aligned: Aligned
) -> PairEvidence:
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
    return PairEvidence(model, aligned, np.array(features, np.float64))


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


ACCEPTANCE_FILE = Path(__file__).parent / "acceptance.json"


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
    low_F, high_F = np.array(list(RANGES.values())).T
    return np.clip(features_NF, low_F, high_F)


@cache
def shipped_acceptance() -> Acceptance:
    read = json.loads(ACCEPTANCE_FILE.read_text(encoding="utf-8"))
    weights_T = np.array([read["weights"][name] for name in FEATURES], np.float64)
    return Acceptance(weights_T, read["bias"])


ACCEPT = 0.9
"""Probability from which two images are copies; `learn.acceptance` fits the weights to it."""
REVIEW = 0.5
"""Probability from which a person should look."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One verified pair of images, positions first < second in the caller's order."""

    first: int
    second: int
    probability: float
    """Probability by the learned acceptance; it depends on the two images alone."""
    inliers: int
    """Points of the first that lie where the transform puts them, at different places."""
    ncc: float
    """Mean local normalised cross-correlation of the aligned pair, weighted by texture."""
    covered: float
    """Share of the smaller image that the overlap covers."""
    mirrored: bool
    transform_23: tuple[float, ...]
    """Affine, row by row: maps (x, y, 1) of first to second, in pixels of the described size."""

    @property
    def same(self) -> bool:
        """Whether the pair is accepted without a person."""
        return self.probability >= ACCEPT

    @property
    def uncertain(self) -> bool:
        """Whether a person should decide."""
        return REVIEW <= self.probability < ACCEPT

    def turned(self) -> "Copy":
        """Return the same evidence with the two images exchanged."""
        linear_22, move_2 = np.reshape(self.transform_23, (2, 3))[:, :2], self.transform_23[2::3]
        back_22 = np.linalg.inv(linear_22)
        back_23 = np.column_stack([back_22, -back_22 @ np.array(move_2)])
        transform_23 = tuple(float(value) for value in back_23.ravel())
        return dataclasses.replace(
            self, first=self.second, second=self.first, transform_23=transform_23
        )


VERSION = 4
"""Counts up when a pair's evidence changes, so that pairs are verified again."""

TURNED, ZOOMED = 3.0, 1.15
"""Degrees from every quarter turn, or the change of size either way, from which on another hand
held the camera."""
TURNED_INLIERS = 12
"""Least agreeing points of a copy: those of strangers have never been as many, turned or not."""
_AGREED = {"fine": 0.35, "ncc": 0.75, "beneath": 0.75, "consent": 0.85, "covered": 0.6}
"""Least evidence of a second photo. Lesions that look alike have at most 0.34 of the first."""

_OUTNUMBERED = 3
"""Times as many points of another model take a model out: a pattern repeats itself.

The dots of a frame agree in many places, and what denies the best of them decides for all.
"""


def evidence_of(first: Description, second: Description) -> list[PairEvidence]:
    """Return the evidence of every model under which the images overlap."""
    laid = [(model, align(first, second, model.transform_23)) for model in models_of(first, second)]
    return [measure(first, second, model, aligned) for model, aligned in laid if aligned]


def verify(
    first: Description, second: Description, acceptance: Acceptance | None = None
) -> Copy | None:
    """Return the evidence of first (position 0) and second (1), or None where no points agree.

    The order in which the two are given decides nothing.
    """
    if first.digest > second.digest:
        copy = verify(second, first, acceptance)
        return copy and dataclasses.replace(copy.turned(), first=0, second=1)
    acceptance = acceptance or shipped_acceptance()
    judged = [
        (_judged(acceptance.probability(evidence.features_F), evidence), evidence)
        for evidence in evidence_of(first, second)
    ]
    most = max((evidence.model.inliers for _, evidence in judged), default=0)
    likely = [one for one in judged if one[1].model.inliers * _OUTNUMBERED >= most]
    probability, evidence = max(likely, key=lambda one: one[0], default=(0.0, None))
    if probability < ACCEPT and (picture := same_picture(first, second)):
        return _of_picture(picture)
    if evidence is None:
        return None
    if probability < REVIEW:  # what is refused is shown as most points have it: they come first
        evidence = judged[0][1]
    return Copy(
        0,
        1,
        probability,
        evidence.model.inliers,
        round(evidence["ncc"], 4),
        round(evidence.aligned.covered, 4),
        evidence.model.mirrored,
        _transform(evidence.aligned),
    )


def _of_picture(picture: SamePicture) -> Copy:
    """Return the evidence of two encodings of one picture, whatever points they have."""
    aligned = picture.aligned
    shown = round(picture.ncc, 4), round(aligned.covered, 4), picture.mirrored
    return Copy(0, 1, ACCEPT, 0, *shown, _transform(aligned))


def _transform(aligned: Aligned) -> tuple[float, ...]:
    return tuple(float(value) for value in np.round(aligned.transform_23, 5).ravel())


def _judged(probability: float, evidence: PairEvidence) -> float:
    """Accept a pair that the acceptance doubts where it is a second photo by its geometry.

    The acceptance is as strict as it is because of overlays that different images share. Those lie
    straight and have one size; a second photo in another light is held by another hand: turned, or
    nearer. Then many points must agree, or the finest detail all over the overlap.
    """
    transform_23 = evidence.aligned.transform_23
    turned = turn_of(transform_23) >= TURNED
    if turned and probability >= REVIEW and evidence.model.inliers >= TURNED_INLIERS:
        return max(probability, ACCEPT)
    moved = turned or zoom_of(transform_23) >= ZOOMED
    if moved and all(evidence[name] >= least for name, least in _AGREED.items()):
        return max(probability, ACCEPT)
    return probability


def turn_of(transform_23: NDArray[np.float64]) -> float:
    """Return how many degrees a map turns beyond the nearest quarter turn, mirrored or not."""
    left_22, _, right_22 = np.linalg.svd(transform_23[:, :2])
    (cosine, _), (sine, _) = left_22 @ right_22
    return float(abs((np.degrees(np.arctan2(sine, cosine)) + 45) % 90 - 45))


def zoom_of(transform_23: NDArray[np.float64]) -> float:
    """Return how many times larger one image shows the same, 1 or more."""
    size = float(np.sqrt(abs(np.linalg.det(transform_23[:, :2]))))
    return max(size, 1 / max(size, 1e-9))
