"""An epoch's figures of a member, and the line that sums them up."""

from typing import Any

import numpy as np

from skindx.metrics import balanced_accuracy
from skindx.training.finished.member import FinishedMember
from skindx.training.task import DivergedError, EpochSpeed, Row


def figures(finished: FinishedMember, speed: EpochSpeed) -> dict[str, Any]:
    """Return accuracy on the validation images, and the speed. Raises DivergedError."""
    probabilities_NC = np.exp(finished.validation_NC)
    if not np.isfinite(probabilities_NC).all():
        raise DivergedError("answers")
    score = balanced_accuracy(probabilities_NC, finished.truth_N)
    right_N = finished.validation_NC.argmax(axis=1) == finished.truth_N
    return {
        "val_top1": round(float(right_N.mean()), 4),
        "val_balanced": round(float(score), 4),
        "pictures_per_s": speed.images_per_s,
        "wait_share": speed.wait_share,
        "memory_gb": speed.memory_gb,
    }


def epoch_line(row: Row) -> str:
    """Return an epoch's figures as a line."""
    return (
        f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val top-1 {row['val_top1']:.3f}  "
        f"balanced {row['val_balanced']:.3f}  {row['pictures_per_s']:.0f} images/s"
    )
