"""How well a detector finds the boxes of the validation split, each rank on its share."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice

from skindx.data.box import Box
from skindx.data.loader.ahead import work_ahead
from skindx.metrics import DetectionScore, mean_average_precision
from skindx.models.detector.detector import Detector
from skindx.models.detector.recall import DetectorRecall, SizedTruth, recall_by_size
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.detector.images import BoxedSet

LEAST_CONFIDENCE = 0.001
"""mAP is an area under precision against recall: it needs the doubtful boxes as well."""

_BATCH = 16

Boxes = tuple[Box, ...]


def score_detector(detector: Detector, own: BoxedSet, mesh: Mesh) -> DetectionScore | None:
    """Return the mAP over the images of all ranks, on every rank; None when none has a box.

    `own` are this rank's images. An image without boxes counts: what is found there is a false
    alarm.
    """
    pairs = list(zip(_truth(own), _find(detector, own, LEAST_CONFIDENCE), strict=True))
    everyone = [pair for part in mesh.gather(pairs) for pair in part]
    return mean_average_precision(
        [truth for truth, _ in everyone], [found for _, found in everyone]
    )


def measure_recall(detector: Detector, own: BoxedSet, mesh: Mesh) -> DetectorRecall | None:
    """Return how many lesions of each size are found over the images of all ranks, on every rank.

    That is at the confidence with which boxes are shown. None when no image has a lesion.
    """
    confidence, size = detector.spec.confidence, detector.spec.size
    sized = [
        SizedTruth(truth, found, size / max(record.width, record.height))
        for record, truth, found in zip(
            own.records, _truth(own), _find(detector, own, confidence), strict=True
        )
    ]
    return recall_by_size((one for part in mesh.gather(sized) for one in part), confidence)


def _truth(own: BoxedSet) -> list[Boxes]:
    # Only corners and classes travel between the ranks.
    return [
        tuple(replace(box, drawn_by="", drawn_at="") for box in record.boxes or ())
        for record in own.records
    ]


def _find(detector: Detector, own: BoxedSet, confidence: float) -> Sequence[Boxes]:
    found: list[Boxes] = []
    ahead = 2 * _BATCH
    images = work_ahead(own.source.image, range(len(own)), threads=own.reading.threads, ahead=ahead)
    with closing(images):
        while batch := list(islice(images, _BATCH)):
            found += detector.detect(batch, confidence)
    return found
