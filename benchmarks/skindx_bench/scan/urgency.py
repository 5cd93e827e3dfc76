"""How well a scan ranks: malignant lesions before the others on the same photo."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.diagnosis.predictor import Predictor
from skindx.metrics.share_intervals import Interval, proportion_interval
from skindx.scan.lesion_diagnosis import diagnose_lesions
from skindx.scan.photo_store import photo_store
from skindx.scan.scan_settings import ScanSettings
from skindx.scan.scanned_lesions import ScannedLesion, ScannedPhoto, rank, shown_percent
from skindx.scan.tile_search import iou
from skindx_bench.scan.photos import Boxes, Truth
from skindx_bench.scan.scoring import IOU

# L = lesions that were found

_AT_ONCE = 64
"""Crops in one batch."""
SETTINGS = ScanSettings()


def can_rank(predictor: Predictor) -> bool:
    """Return whether any class of the bundle is urgent."""
    return any(one.urgency == "urgent" for one in predictor.taxonomy.classes)


class Ranking:
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
