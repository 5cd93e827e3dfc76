"""Mean average precision of boxes, by pycocotools."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
