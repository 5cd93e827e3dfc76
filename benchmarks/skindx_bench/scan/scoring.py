"""How well boxes fit the truth, by size and on seams, and how well a scan ranks lesions."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.diagnosis.predictor import Predictor
from skindx.metrics import mean_average_precision
from skindx.metrics.share_intervals import Interval, proportion_interval
from skindx.scan.photo_store import photo_store
from skindx.scan.scanned_lesions import (
    ScannedLesion,
    ScannedPhoto,
    diagnose_lesions,
    rank,
    shown_percent,
)
from skindx.scan.tile_search import ScanSettings, iou
from skindx_bench.harness.result import Figure
from skindx_bench.scan.photos import Boxes, Truth

IOU = 0.5
BINS = (12, 24, 48, 96, 201)
"""Pixels of a lesion's longer side: borders of the classes of size."""
SAME_PLACE = 0.2
"""Overlap from which a box is of a lesion, however badly it fits."""

# N = found boxes, K = true boxes


@dataclass(frozen=True)
class Photo:
    """The truth of a photo and what was found on it."""

    truth_K4: NDArray[np.float64]
    boxes_N4: NDArray[np.float64]
    scores_N: NDArray[np.float64]

    def matched(self, confidence: float) -> tuple[NDArray[np.bool_], int]:
        """Return which true boxes are found at IoU 0.5, K, and how many boxes fit none."""
        choices_N = self.choices()
        kept_N = self.scores_N >= confidence
        taken_K = np.zeros(len(self.truth_K4), bool)
        taken_K[choices_N[kept_N & (choices_N >= 0)]] = True
        return taken_K, int((kept_N & (choices_N < 0)).sum())

    def choices(self) -> NDArray[np.int64]:
        """Return for each found box, N, the number of the true box that it finds, or -1.

        Found boxes choose in the order of their scores, each true box at most once.
        """
        choices_N = np.full(len(self.boxes_N4), -1)
        taken_K = np.zeros(len(self.truth_K4), bool)
        for n in np.argsort(-self.scores_N, kind="stable"):
            overlap_K = np.where(taken_K, 0.0, iou(self.boxes_N4[n], self.truth_K4))
            if len(overlap_K) and overlap_K.max() >= IOU:
                choices_N[n] = overlap_K.argmax()
                taken_K[choices_N[n]] = True
        return choices_N

    def listed(self, confidence: float) -> NDArray[np.int64]:
        """Return how many listed boxes lie at the place of each true one, K."""
        boxes_N4 = self.boxes_N4[self.scores_N >= confidence]
        counts = [int((iou(true_4, boxes_N4) >= SAME_PLACE).sum()) for true_4 in self.truth_K4]
        return np.array(counts, np.int64)

    def on_seams(self, lines: Sequence[NDArray[np.float64]], confidence: float) -> tuple[int, int]:
        """Return how many lesions that a tile's side crosses are found, and how many of them once.

        `lines` are x and y of the sides of tiles.
        """
        found = once = 0
        counts_K = self.listed(confidence)
        for (x1, y1, x2, y2), count in zip(self.truth_K4, counts_K, strict=True):
            crossed = ((lines[0] > x1) & (lines[0] < x2)).any() or (
                (lines[1] > y1) & (lines[1] < y2)
            ).any()
            if crossed and count:
                found, once = found + 1, once + (count == 1)
        return found, once


def share(part: int, count: int) -> Figure:
    """Return a share with its exact 95 % interval."""
    return Figure.of(proportion_interval(part / count, count), "", count)


def average_precision(photos: Sequence[Photo]) -> float:
    """Return AP at IoU 0.5, in points (0..100), by pycocotools. At most 100 boxes a photo."""
    truth = [_boxes(photo.truth_K4, None) for photo in photos]
    found = [_boxes(photo.boxes_N4, photo.scores_N) for photo in photos]
    score = mean_average_precision(truth, found)
    return 100 * score.map50 if score else 0.0


def _boxes(boxes_N4: NDArray[np.float64], scores_N: NDArray[np.float64] | None) -> list[Box]:
    return [
        Box(x1, y1, x2, y2, score=None if scores_N is None else float(scores_N[n]))
        for n, (x1, y1, x2, y2) in enumerate(boxes_N4.tolist())
    ]


def shares(photos: Sequence[Photo], confidence: float) -> dict[str, tuple[int, int]]:
    """Return (part, whole) of recall, of precision, and of recall_FROM_TO by size."""
    counts = {"recall": (0, 0), "precision": (0, 0)}
    for photo in photos:
        taken_K, wrong = photo.matched(confidence)
        right = int(taken_K.sum())
        sides_K = (photo.truth_K4[:, 2:] - photo.truth_K4[:, :2]).max(axis=1, initial=0)
        _add(counts, "recall", right, len(taken_K))
        _add(counts, "precision", right, right + wrong)
        for low, high in itertools.pairwise(BINS):
            within_K = (sides_K >= low) & (sides_K < high)
            name = f"recall_{low}_{high - high % 2}_px"
            _add(counts, name, int(taken_K[within_K].sum()), int(within_K.sum()))
    return counts


def recall_at(photos: Sequence[Photo], precision: float) -> tuple[int, int]:
    """Return (part, whole) of the highest recall at a score where precision is so high, or higher.

    The score is chosen on these photos: it describes the curve and chooses no threshold.
    """
    right_N = np.concatenate([photo.choices() >= 0 for photo in photos])
    scores_N = np.concatenate([photo.scores_N for photo in photos])
    order = np.argsort(-scores_N, kind="stable")
    found_N = right_N[order].cumsum()
    # boxes of one score are kept or left out together
    last_N = np.append(np.diff(scores_N[order]) < 0, True)[: len(order)]
    enough_N = last_N & (found_N >= precision * np.arange(1, len(order) + 1))
    return int(found_N[enough_N].max(initial=0)), sum(len(photo.truth_K4) for photo in photos)


def _add(counts: dict[str, tuple[int, int]], name: str, part: int, whole: int) -> None:
    known = counts.get(name, (0, 0))
    counts[name] = (known[0] + part, known[1] + whole)


# L = lesions that were found

_AT_ONCE = 64
"""Crops in one batch."""
SETTINGS = ScanSettings()


def can_rank(predictor: Predictor) -> bool:
    """Return whether any class of the bundle is urgent."""
    return any(one.urgency == "urgent" for one in predictor.taxonomy.classes)


class UrgencyRanking:
    """Malignant lesions against the others of the same photo, over all photos."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._above = {"rank_auroc": 0.0, "rank_auroc_by_risk_alone": 0.0}
        self._pairs = self._malignant = 0

    def add(self, truth: Truth, found: Boxes, confidence: float, folder: Path) -> None:
        """Diagnose and rank what was found on a photo; what fits no lesion is left out."""
        boxes_N4, scores_N = found
        kept = np.flatnonzero(scores_N >= confidence)
        rows = [(*boxes_N4[n].tolist(), float(scores_N[n])) for n in kept]
        boxes = [Box(x1, y1, x2, y2, score=score) for x1, y1, x2, y2, score in rows]
        store = photo_store(truth.path, folder / f"{truth.path.stem}-store")
        lesions: list[ScannedLesion] = []
        for start in range(0, len(boxes), _AT_ONCE):
            some = boxes[start : start + _AT_ONCE]
            lesions += diagnose_lesions(self._predictor, store, some, SETTINGS.margin)
        self.count(truth, lesions)

    def count(self, truth: Truth, lesions: Sequence[ScannedLesion]) -> None:
        """Rank the lesions of a photo and compare the malignant ones with the others."""
        size = (0, 0)  # which nothing here asks for
        photo = ScannedPhoto(truth.path.name, "", *size, 0, 0, 0, tuple(lesions))
        ranked = [one.lesion for one in rank([photo])]
        malignant_L = _malignant(ranked, truth)
        known_L = malignant_L >= 0
        own_L = malignant_L[known_L] == 1
        risks_L = np.array([100.0 * bool(x.urgent) + shown_percent(x.urgent_risk) for x in ranked])
        self._above["rank_auroc"] += _above(-np.arange(len(own_L), dtype=np.float64), own_L)
        self._above["rank_auroc_by_risk_alone"] += _above(risks_L[known_L], own_L)
        pairs = int(own_L.sum() * (~own_L).sum())
        self._pairs += pairs
        self._malignant += int(own_L.sum()) if pairs else 0

    def areas(self) -> dict[str, tuple[float, int, Interval]]:
        """Return each AUROC, the number of malignant lesions, and a 95 % interval.

        The interval is that of a share of so many lesions: it takes each as one observation of how
        many of the others it precedes, which varies at most as much as right and wrong do.
        """
        if not self._pairs:
            return {}
        count = self._malignant
        areas = {key: above / self._pairs for key, above in self._above.items()}
        return {key: (area, count, proportion_interval(area, count)) for key, area in areas.items()}


def _above(scores_L: NDArray[np.float64], malignant_L: NDArray[np.bool_]) -> float:
    """Return in how many pairs the malignant lesion has the higher score; equal ones count half."""
    above = scores_L[malignant_L][:, None] - scores_L[~malignant_L]
    return float((above > 0).sum() + 0.5 * (above == 0).sum())


def _malignant(lesions: Sequence[ScannedLesion], truth: Truth) -> NDArray[np.int64]:
    """Return 1 for a malignant lesion, 0 for another, -1 for what fits none, L."""
    found = []
    for lesion in lesions:
        box_4 = np.array([lesion.box.x1, lesion.box.y1, lesion.box.x2, lesion.box.y2])
        overlap_K = iou(box_4, truth.boxes_K4) if len(truth.boxes_K4) else np.zeros(1)
        best = int(overlap_K.argmax())
        found.append(int(truth.urgent_K[best]) if overlap_K[best] >= IOU else -1)
    return np.array(found, np.int64)
