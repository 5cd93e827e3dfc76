"""How well boxes fit the truth: recall and precision at IoU 0.5, by size, and lesions on seams."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.metrics import mean_average_precision
from skindx.scan.tile_search import iou

IOU = 0.5
BINS = (12, 24, 48, 96, 201)
"""Pixels of a lesion's longer side: borders of the classes of size."""
_SAME_PLACE = 0.2
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

    def on_seams(self, lines: Sequence[NDArray[np.float64]], confidence: float) -> tuple[int, int]:
        """Return how many lesions that a tile's side crosses are found, and how many of them once.

        `lines` are x and y of the sides of tiles.
        """
        found = once = 0
        boxes_N4 = self.boxes_N4[self.scores_N >= confidence]
        for x1, y1, x2, y2 in self.truth_K4:
            crossed = ((lines[0] > x1) & (lines[0] < x2)).any() or (
                (lines[1] > y1) & (lines[1] < y2)
            ).any()
            count = int((iou(np.array([x1, y1, x2, y2]), boxes_N4) >= _SAME_PLACE).sum())
            if crossed and count:
                found, once = found + 1, once + (count == 1)
        return found, once


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
