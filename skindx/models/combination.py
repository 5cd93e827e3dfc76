"""How answers are combined: members by weights or by vote, and the crop of a box with the whole."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from skindx.core.settings_base import Settings
from skindx.data.box import Box
from skindx.models.probability_correction import apply_temperature

PAPER = (
    "Ensembles of skin networks | He et al., Computer-Aided Clinical Skin Disease Diagnosis "
    "Using CNN and Object Detection Models, arXiv 1911.08705, 2019 | "
    "tests/models/test_combination.py | docs/measured/ensemble.json"
)

# M = members, N = images, K = images with a crop, C = classes, H, W = height, width,
# S = side of the crop

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


Space = Literal["probability", "logit"]

_WEIGHTS = 101
"""Weights that a fit compares: whole percents; validation splits cannot distinguish finer ones."""


class FusionSpec(Settings):
    """How much the crop around the best box counts, and how wide it is."""

    weight: float = Field(ge=0, le=1)
    margin: float = Field(1.5, ge=1, le=4)
    """Side of the crop over the longer side of the box."""


def best_box(boxes: Sequence[Box], confidence: float) -> Box | None:
    """Return the box with the highest score of at least `confidence`; None when there is none."""
    sure = [box for box in boxes if box.score is not None and box.score >= confidence]
    return max(sure, key=lambda box: box.score or 0.0, default=None)


def box_crop(image_HW3: NDArray[np.uint8], box: Box, margin: float) -> NDArray[np.uint8]:
    """Return a view S x S x 3 around a box: `margin` times its longer side, inside the image.

    A square that would stand out is moved in, and is no larger than the image's shorter side.
    """
    height, width = image_HW3.shape[:2]
    wanted = round(margin * max(box.x2 - box.x1, box.y2 - box.y1))
    side = max(1, min(wanted, height, width))
    left = round((box.x1 + box.x2 - side) / 2)
    top = round((box.y1 + box.y2 - side) / 2)
    left, top = min(max(left, 0), width - side), min(max(top, 0), height - side)
    return image_HW3[top : top + side, left : left + side]


def box_crops(
    images: Sequence[NDArray[np.uint8]],
    boxes_N: Sequence[Sequence[Box]],
    confidence: float,
    margin: float,
) -> dict[int, NDArray[np.uint8]]:
    """Return image number -> crop around its best box, of the images that have one.

    A crop that is the whole image is left out: it would be no second view, and would pass for
    one where views are counted and weighed.
    """
    best = {n: best_box(boxes, confidence) for n, boxes in enumerate(boxes_N)}
    crops = {n: box_crop(images[n], box, margin) for n, box in best.items() if box}
    return {n: crop for n, crop in crops.items() if crop.shape != images[n].shape}


def fuse(
    whole: NDArray[np.float64], crop: NDArray[np.float64], weight: float
) -> NDArray[np.float64]:
    """Return (1 - w) whole + w crop of two arrays of probabilities; w = 0 is `whole` to the bit."""
    if weight == 0:
        return whole
    mixed: NDArray[np.float64] = (1 - weight) * whole + weight * crop
    return mixed


class ProbabilityModel(Protocol):
    """An ensemble, as far as fusion needs it."""

    def probabilities(
        self, images: Sequence[NDArray[np.uint8]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return its probabilities N x C and each member's M x N x C."""


def assist(
    ensemble: ProbabilityModel,
    crops: Mapping[int, NDArray[np.uint8]],
    whole: tuple[NDArray[np.float64], NDArray[np.float64]],
    weight: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fuse the predictions of whole images with those of crops, where there are any.

    After He et al. 2019 (arXiv 1911.08705), where boxes help some classes. Here the same ensemble
    predicts both views, and p = (1 - w) p_whole + w p_crop.

    `whole` are probabilities N x C and each member's M x N x C, which are left as they are; so are
    images without a crop. At weight 0 no crop is predicted.
    """
    if not crops or weight == 0:
        return whole
    whole_NC, whole_MNC = whole
    crop_KC, crop_MKC = ensemble.probabilities(list(crops.values()))
    seen = list(crops)
    fused_NC, fused_MNC = whole_NC.copy(), whole_MNC.copy()
    fused_NC[seen] = fuse(whole_NC[seen], crop_KC, weight)
    fused_MNC[:, seen] = fuse(whole_MNC[:, seen], crop_MKC, weight)
    return fused_NC, fused_MNC


def fit_weight(
    whole_NC: NDArray[np.float64], crop_NC: NDArray[np.float64], truth_N: NDArray[np.integer]
) -> float:
    """Return the weight in 0, 0.01, .. 1 with the least negative log-likelihood of the truth.

    The images are those of validation that have a box: to the others no weight matters. Of equal
    weights the smallest is taken, so that an uninformative crop has weight 0.
    """
    images_N = np.arange(len(truth_N))
    whole_N, crop_N = whole_NC[images_N, truth_N], crop_NC[images_N, truth_N]
    weights_W = np.linspace(0, 1, _WEIGHTS)
    mixed_WN = whole_N + weights_W[:, None] * (crop_N - whole_N)
    loss_W = -np.log(np.maximum(mixed_WN, 1e-300)).sum(axis=1)
    return float(weights_W[loss_W.argmin()])
