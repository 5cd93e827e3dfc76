"""Balanced accuracy of an export beside that of its networks, paired, on the test split."""

import math
from collections.abc import Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.metrics import Statistic, paired_interval
from skindx.models.ensemble.ensemble import Ensemble
from skindx.models.ensemble.predicting import predict_records
from skindx.models.exports.refitting import known, truth
from skindx.models.exports.spec import PairedAccuracy
from skindx.taxonomy import Taxonomy

MOST_LOST = 0.005
"""Half a point of balanced accuracy."""


def measure_accuracy(
    eager: Ensemble,
    exported: Ensemble,
    taxonomy: Taxonomy,
    dataset: Path,
    records: Sequence[Record],
) -> PairedAccuracy | None:
    """Return both figures of images with known labels; None without such an image."""
    judged = [records[n] for n in known(records, taxonomy)]
    if not judged:
        return None
    truth_N = truth(judged, taxonomy)
    ours, before = (
        Statistic.balanced_accuracy(predict_records(predictor, dataset, judged)[0], truth_N)
        for predictor in (exported, eager)
    )
    difference = paired_interval(ours, before, [record.group for record in judged])
    low, high = (
        None if math.isnan(bound) else bound for bound in (difference.low, difference.high)
    )
    return PairedAccuracy(
        pictures=len(judged), eager=before.value, exported=ours.value, low=low, high=high
    )


def refuse_loss(accuracy: PairedAccuracy, name: str) -> None:
    """Raise UserError for an export that loses more than half a point."""
    lost = accuracy.eager - accuracy.exported
    # Rounded: half a point exactly is not more.
    if round(lost, 9) > MOST_LOST:
        raise UserError(
            f"the {name} export is refused: on {accuracy.pictures} test images its balanced "
            f"accuracy is {100 * accuracy.exported:.2f} %, that of the networks "
            f"{100 * accuracy.eager:.2f} %, and at most {100 * MOST_LOST:.1f} points may be lost; "
            "the bundle is as it was, use a higher --precision."
        )
