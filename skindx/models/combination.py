"""How answers are combined: members by weights or by vote, and the crop of a box with the whole."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_plain_yaml
from skindx.data.box import Box
from skindx.taxonomy import Taxonomy

# Probabilities corrected: by a temperature, and for another mix of diseases.

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
            f"scores must have the shape (N, C) and truth (N), but have {scores_NC.shape} and "
            f"{truth_N.shape}"
        )
    if not np.isfinite(scores_NC).all():
        raise ValueError("scores must be finite; give log_softmax, not the log of probabilities")
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
    """Share of each class, in the taxonomy's order; they sum to 1."""
    calibration_C: tuple[float, ...]
    """The shares of the classes among the calibration images."""

    @classmethod
    def from_shares(cls, given: Mapping[str, float], counts: Mapping[str, int] | None) -> Self:
        """Take a share of each class, and the number of its calibration images.

        A class counts as one image more than there was: none is impossible because none was there.
        Raises UserError for a bundle that does not say how many there were.
        """
        if counts is None:
            raise UserError(
                "the bundle does not store the number of calibration images of each class, so "
                "--prevalence cannot be used; pack the bundle with this version of skindx, or "
                "remove --prevalence."
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
                f"{path} has the class {str(label)[:60]!r}, which the bundle does not have; use "
                "only the classes "
                f"{', '.join(taxonomy.keys[:20])}{' …' if len(taxonomy.keys) > 20 else ''}."
            )
        if skin_class.key in given:
            raise UserError(
                f"{path} has the class {skin_class.key} twice; delete one of the two lines."
            )
        given[skin_class.key] = _share(path, skin_class.key, value)
    missing = [key for key in taxonomy.keys if key not in given]
    if missing:
        raise UserError(
            f"{path} has no share for "
            f"{', '.join(missing[:10])}{' …' if len(missing) > 10 else ''}; write one line "
            "`class: share` for each class."
        )
    total = math.fsum(given.values())
    if abs(total - 1) > _SUM_SLACK:
        raise UserError(
            f"the shares in {path} add up to {total:.4g}, but must add up to 1; write the share "
            "of each class among all photos, such as 0.02 for 2 %."
        )
    return {key: given[key] for key in taxonomy.keys}


def _share(path: Path, key: str, value: Any) -> float:
    if isinstance(value, str):  # 1e-3 has no dot, so that YAML takes it for text
        with suppress(ValueError):
            value = float(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:
        raise UserError(
            f"{path} has the share {str(value)[:40]!r} for {key}; write a number above 0 and at "
            "most 1 (a small number for a rare class)."
        )
    return float(value)


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

    @property
    def votes(self) -> bool:
        """Whether a member counts by its first class, and not by its probabilities."""
        return self.rule == "vote"


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


Space = Literal["auto", "probability", "logit"]

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
