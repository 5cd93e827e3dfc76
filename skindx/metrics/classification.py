"""Accuracy of classes, and of boxes."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.metrics.measures import Ranked, Statistic, by_confidence
from skindx.metrics.share_intervals import Floats, Ints, check_probabilities, confidence_bin

# N = images, C = classes


def top_k_accuracy(probabilities_NC: Floats, truth_N: Ints, k: int = 1) -> float:
    """Return the share of images whose true class is among the k likeliest."""
    return Statistic.top_k(probabilities_NC, truth_N, k).value


def balanced_accuracy(probabilities_NC: Floats, truth_N: Ints) -> float:
    """Return the mean sensitivity of the classes that are present."""
    return Statistic.balanced_accuracy(probabilities_NC, truth_N).value


def expected_calibration_error(probabilities_NC: Floats, truth_N: Ints, bins: int = 15) -> float:
    """Return the mean gap of confidence and accuracy over equal-width bins of confidence.

    Guo et al., "On Calibration of Modern Neural Networks", 2017, equation 3.
    """
    return Statistic.calibration_error(probabilities_NC, truth_N, bins).value


def brier_score(probabilities_NC: Floats, truth_N: Ints) -> float:
    """Return the mean squared distance to the one-hot truth, summed over classes: 0 to 2."""
    return Statistic.brier(probabilities_NC, truth_N).value


def macro_f1(probabilities_NC: Floats, truth_N: Ints) -> float:
    """Return the mean F1 of the classes that are present."""
    return Statistic.macro_f1(probabilities_NC, truth_N).value


def auroc(probabilities_NC: Floats, truth_N: Ints) -> float:
    """Return the mean area under the ROC curves, one class against the rest; NaN for one class."""
    return Ranked.auroc(probabilities_NC, truth_N).value


def confusion_CC(probabilities_NC: Floats, truth_N: Ints) -> NDArray[np.int64]:  # noqa: N802
    """Return counts of images: rows are true classes, columns predicted ones."""
    check_probabilities(probabilities_NC, truth_N)
    classes = probabilities_NC.shape[1]
    counts_CC = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts_CC, (truth_N, probabilities_NC.argmax(axis=1)), 1)
    return counts_CC


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Images with top-1 confidence in (low, high]; `confidence` is their mean, NaN when none."""

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


def reliability_bins(
    probabilities_NC: Floats, truth_N: Ints, bins: int = 15
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
        accuracy = float(hits_N[inside_N].mean()) if n else float("nan")
        return ReliabilityBin(number / bins, (number + 1) / bins, n, confidence, accuracy)

    return tuple(one(number) for number in range(bins))


@dataclass(frozen=True, slots=True)
class RiskPoint:
    """Answering the share `coverage` of the images, those of at least `confidence`."""

    coverage: float
    risk: float
    """Share of wrong answers among those given."""
    confidence: float


def risk_curve(probabilities_NC: Floats, truth_N: Ints, steps: int = 20) -> tuple[RiskPoint, ...]:
    """Return the risk-coverage curve (El-Yaniv and Wiener 2010) at about `steps` coverages.

    Images of equal confidence are answered together; the last point answers all.
    """
    check_probabilities(probabilities_NC, truth_N)
    order_N, end_N = by_confidence(probabilities_NC)
    wrong_N = (probabilities_NC.argmax(axis=1) != truth_N)[order_N].cumsum()
    confidence_N = probabilities_NC.max(axis=1)[order_N]
    n = len(truth_N)
    wanted = np.ceil(np.arange(1, steps + 1) * n / steps).astype(int) - 1
    return tuple(
        RiskPoint((end + 1) / n, float(wrong_N[end] / (end + 1)), float(confidence_N[end]))
        for end in (int(place) for place in np.unique(end_N[wanted]))
    )


# P = images


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


def mean_average_precision(
    truth_P: Sequence[Sequence[LabelledBox]], detected_P: Sequence[Sequence[LabelledBox]]
) -> DetectionScore | None:
    """Score found boxes image by image; None when there is no true box to find.

    An image without true boxes counts: what is found there is a false alarm. Found boxes need a
    score; at most 100 an image count, as in COCO. Classes are the labels of the true boxes.
    """
    if len(truth_P) != len(detected_P):
        raise ValueError(f"{len(truth_P)} images with truth, {len(detected_P)} with detections")
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
    map50_95, map50 = _coco(len(truth_P), list(number.values()), truth, detected)
    return DetectionScore(map50, map50_95, len(truth_P), len(truth))


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
        raise ValueError(f"a found box needs a score, got {box}")
    return box.score


def _coco(
    images: int, categories: list[int], truth: list[dict[str, Any]], detected: list[dict[str, Any]]
) -> tuple[float, float]:
    """Return (mAP50-95, mAP50)."""
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
    return float(evaluation.stats[0]), float(evaluation.stats[1])
