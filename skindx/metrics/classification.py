"""Accuracy of classes, and of boxes."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skindx.metrics.bootstrap import bootstrap_intervals
from skindx.metrics.measures import Statistic, by_confidence
from skindx.metrics.share_intervals import (
    Floats,
    Interval,
    Ints,
    check_probabilities,
    confidence_bin,
    share_interval,
)

# N = images, C = classes


def balanced_accuracy(probabilities_NC: Floats, truth_N: Ints) -> float:
    """Return the mean sensitivity of the classes that are present."""
    return Statistic.balanced_accuracy(probabilities_NC, truth_N).value


def confusion_CC(probabilities_NC: Floats, truth_N: Ints) -> NDArray[np.int64]:  # noqa: N802
    """Return counts of images: rows are true classes, columns predicted ones."""
    check_probabilities(probabilities_NC, truth_N)
    classes = probabilities_NC.shape[1]
    counts_CC = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts_CC, (truth_N, probabilities_NC.argmax(axis=1)), 1)
    return counts_CC


def balanced_rule(probabilities_NC: Floats, mix_C: Floats) -> Floats:
    """Return p_k / pi_k, scaled to a sum of 1: its likeliest class is the best for equal costs.

    The class with the greatest p_k / pi_k has the greatest expected share found averaged over
    classes (Bayes' rule with a cost of 1 / pi_k for a missed image of class k), where the
    probabilities are calibrated in a mix with the shares pi = `mix_C`, of any sum. A class that the
    mix lacks is never chosen: nothing was calibrated for it. Raises ValueError for a mix of other
    classes, with a negative share or without any.
    """
    if mix_C.shape != probabilities_NC.shape[1:] or (mix_C < 0).any() or not mix_C.sum() > 0:
        raise ValueError(
            f"the mix must have a share for each of {probabilities_NC.shape[1]} classes, but is "
            f"{mix_C}"
        )
    over_C = np.divide(mix_C.sum(), mix_C, out=np.zeros(len(mix_C)), where=mix_C > 0)
    raised_NC = probabilities_NC * over_C
    total_N1 = raised_NC.sum(axis=1, keepdims=True)
    nothing_N1 = total_N1 == 0
    balanced_NC: Floats = np.where(nothing_N1, probabilities_NC, raised_NC)
    return balanced_NC / np.where(nothing_N1, 1.0, total_N1)


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Images with top-1 confidence in (low, high]; `confidence` is their mean, NaN when none."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float
    right: Interval
    """Accuracy with its exact interval over groups."""


def reliability_bins(
    probabilities_NC: Floats,
    truth_N: Ints,
    groups_N: ArrayLike,
    bins: int = 15,
    *,
    level: float = 0.95,
) -> tuple[ReliabilityBin, ...]:
    """Return the bins behind the expected calibration error, empty ones included."""
    check_probabilities(probabilities_NC, truth_N)
    index_N = confidence_bin(probabilities_NC, bins)
    confidence_N = probabilities_NC.max(axis=1)
    hits_N = probabilities_NC.argmax(axis=1) == truth_N

    def one(number: int) -> ReliabilityBin:
        inside_N = index_N == number
        n = int(inside_N.sum())
        confidence = float(confidence_N[inside_N].mean()) if n else float("nan")
        right = share_interval(hits_N[inside_N], np.asarray(groups_N)[inside_N], level=level)
        return ReliabilityBin(number / bins, (number + 1) / bins, n, confidence, right.value, right)

    return tuple(one(number) for number in range(bins))


@dataclass(frozen=True, slots=True)
class RiskPoint:
    """Answering the share `coverage` of the images, those of at least `confidence`."""

    coverage: float
    risk: float
    """Share of wrong answers among those given."""
    confidence: float
    wrong: Interval
    """The risk with its pointwise interval over groups."""


def risk_curve(
    probabilities_NC: Floats,
    truth_N: Ints,
    groups_N: ArrayLike,
    steps: int = 20,
    *,
    level: float = 0.95,
) -> tuple[RiskPoint, ...]:
    """Return the risk-coverage curve (El-Yaniv and Wiener 2010) at about `steps` coverages.

    Images of equal confidence are answered together; the last point answers all.
    """
    check_probabilities(probabilities_NC, truth_N)
    order_N, end_N = by_confidence(probabilities_NC)
    wrong_N = (probabilities_NC.argmax(axis=1) != truth_N)[order_N]
    groups_N = np.asarray(groups_N)[order_N]
    confidence_N = probabilities_NC.max(axis=1)[order_N]
    n = len(truth_N)
    wanted = np.ceil(np.arange(1, steps + 1) * n / steps).astype(int) - 1

    def point(last: int) -> RiskPoint:
        wrong = share_interval(wrong_N[: last + 1], groups_N[: last + 1], level=level)
        return RiskPoint((last + 1) / n, wrong.value, float(confidence_N[last]), wrong)

    return tuple(point(int(last)) for last in np.unique(end_N[wanted]))


# P = images, K = classes, T = thresholds of IoU, N = found boxes, best first, D = bootstrap draws


class Rectangle(Protocol):
    """A rectangle in pixels."""

    @property
    def x1(self) -> float: ...
    @property
    def y1(self) -> float: ...
    @property
    def x2(self) -> float: ...
    @property
    def y2(self) -> float: ...


class LabelledBox(Rectangle, Protocol):
    """A rectangle with its class; `score` in 0..1 when a detector found it."""

    @property
    def label(self) -> str: ...
    @property
    def score(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class DetectionScore:
    """Mean average precision over classes, at IoU 0.5 and over IoU 0.50 to 0.95 (COCO)."""

    map50: float
    map50_95: float
    pictures: int
    boxes: int
    map50_interval: Interval | None = None
    map50_95_interval: Interval | None = None
    """Interval by bootstrap over groups of images; None where no groups were given."""


def mean_average_precision(
    truth_P: Sequence[Sequence[LabelledBox]],
    detected_P: Sequence[Sequence[LabelledBox]],
    groups_P: ArrayLike | None = None,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> DetectionScore | None:
    """Score found boxes image by image; None when there is no true box to find.

    An image without true boxes counts: what is found there is a false alarm. Found boxes need a
    score; at most 100 an image count, as in COCO. Classes are the labels of the true boxes. Groups
    of images give both figures an interval: see `bootstrap_intervals`.
    """
    if len(truth_P) != len(detected_P):
        raise ValueError(
            f"{len(truth_P)} images have true boxes, but {len(detected_P)} have detections"
        )
    labels = sorted({box.label for boxes in truth_P for box in boxes})
    if not labels:
        return None
    number = {label: i for i, label in enumerate(labels, start=1)}
    truth = [
        {**_annotation(image, box, number[box.label]), "iscrowd": 0}
        for image, boxes in enumerate(truth_P, start=1)
        for box in boxes
    ]
    detected = [
        {**_annotation(image, box, number[box.label]), "score": _score(box)}
        for image, boxes in enumerate(detected_P, start=1)
        for box in boxes
        if box.label in number
    ]
    evaluation = _coco(len(truth_P), list(number.values()), truth, detected)
    map50_95, map50 = (float(figure) for figure in evaluation.stats[:2])
    score = DetectionScore(map50, map50_95, len(truth_P), len(truth))
    if groups_P is None:
        return score
    _, index_P = np.unique(np.asarray(groups_P), return_inverse=True)
    found_K = [_FoundBoxes.from_evaluation(evaluation, k) for k in range(len(labels))]
    both = bootstrap_intervals(
        lambda weights_DG: np.array([_weighted(found_K, w_G[index_P]) for w_G in weights_DG]),
        np.array([map50, map50_95]), index_P, draws=draws, level=level, seed=seed,
    )  # fmt: skip
    return replace(score, map50_interval=both[0], map50_95_interval=both[1])


@dataclass(frozen=True)
class _FoundBoxes:
    """The boxes found of one class, best first, by pycocotools' comparison with the true ones."""

    image_N: Any
    right_T: list[Any]
    """Places of those that match a true box, by threshold of IoU."""
    true_P: Floats
    """Number of true boxes."""

    @classmethod
    def from_evaluation(cls, evaluation: Any, k: int) -> "_FoundBoxes":
        images = len(evaluation.params.imgIds)
        first = k * len(evaluation.params.areaRng) * images  # boxes of any area come first
        parts = evaluation.evalImgs[first : first + images]
        score_N = np.concatenate([part["dtScores"] if part else [] for part in parts])
        order_N = np.argsort(-score_N, kind="mergesort")
        count_P = [len(part["dtScores"]) if part else 0 for part in parts]
        matched_TN = np.concatenate([part["dtMatches"] for part in parts if part], axis=1)
        right_T = [np.flatnonzero(one_N) for one_N in matched_TN[:, order_N] > 0]
        true_P = np.array([len(part["gtIds"]) if part else 0 for part in parts], dtype=float)
        return cls(np.repeat(np.arange(images), count_P)[order_N], right_T, true_P)


def _weighted(found_K: Sequence[_FoundBoxes], weights_P: Floats) -> tuple[float, float]:
    """Return (mAP50, mAP50-95) where each image counts as often as its weight.

    The precision at a recall is the greatest from there on, which is always at a right box.
    """
    of_class = []
    for found in found_K:
        if not (true := float(weights_P @ found.true_P)):
            continue
        weight_N = weights_P[found.image_N]
        upto_N, average_T = weight_N.cumsum(), []
        for places in found.right_T:
            right = weight_N[places].cumsum()
            precision = right / np.maximum(upto_N[places], 1.0)
            precision = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
            average_T.append(precision[np.searchsorted(right / true, _RECALLS)].mean())
        of_class.append((average_T[0], np.mean(average_T)))
    return tuple(np.mean(of_class, axis=0).tolist()) if of_class else (np.nan, np.nan)


_RECALLS = np.linspace(0.0, 1.0, 101)  # as pycocotools has them


def _annotation(image: int, box: LabelledBox, category: int) -> dict[str, Any]:
    width, height = box.x2 - box.x1, box.y2 - box.y1
    return {
        "image_id": image,
        "category_id": category,
        "bbox": [box.x1, box.y1, width, height],
        "area": width * height,
    }


def _score(box: LabelledBox) -> float:
    if box.score is None:
        raise ValueError(f"a detected box needs a score, but {box} has none")
    return box.score


def _coco(
    images: int, categories: list[int], truth: list[dict[str, Any]], detected: list[dict[str, Any]]
) -> Any:
    """Return pycocotools' evaluation; its first figures are mAP50-95 and mAP50."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def index(annotations: list[dict[str, Any]]) -> Any:
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i} for i in range(1, images + 1)],
            "categories": [{"id": i} for i in categories],
            "annotations": [
                {**annotation, "id": i} for i, annotation in enumerate(annotations, start=1)
            ],
        }
        coco.createIndex()
        return coco

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        evaluation = COCOeval(index(truth), index(detected), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation
