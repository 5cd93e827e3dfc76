"""How many images of a split the bundle's out-of-distribution (OOD) check refuses."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skindx.data.manifest import Record
from skindx.metrics import Interval, share_interval
from skindx.models.ensemble import Prediction


@dataclass(frozen=True, slots=True)
class OodScore:
    """The share refused, beside the share of images like the calibration images that may be.

    A dataset of the bundle's own kind stays near `promised`; one of another camera or of other
    conditions should be refused more often.
    """

    refused: Interval
    promised: float
    n: int


def score_ood(records: Sequence[Record], predictions: Sequence[Prediction]) -> OodScore | None:
    """Return how many are refused; None for a bundle without a check.

    Images of one group count as one.
    """
    checks = [prediction.ood for prediction in predictions if prediction.ood]
    if not checks or len(checks) < len(predictions):
        return None
    out_N = np.array([check.p_value <= check.rate for check in checks])
    groups = [record.group for record in records]
    return OodScore(share_interval(out_N, groups), checks[0].rate, len(checks))
