"""How good a prediction is, with honest intervals: numpy only, pycocotools inside mAP."""

from skindx.metrics.classification import (
    ReliabilityBin,
    balanced_accuracy,
    brier_score,
    confusion_CC,
    expected_calibration_error,
    reliability_bins,
    sensitivity_C,
    top_k_accuracy,
)
from skindx.metrics.detection import DetectionScore, mean_average_precision
from skindx.metrics.intervals import (
    Interval,
    bootstrap_interval,
    effective_size,
    paired_interval,
    wilson_interval,
)
from skindx.metrics.statistic import Statistic

__all__ = [
    "DetectionScore",
    "Interval",
    "ReliabilityBin",
    "Statistic",
    "balanced_accuracy",
    "bootstrap_interval",
    "brier_score",
    "confusion_CC",
    "effective_size",
    "expected_calibration_error",
    "mean_average_precision",
    "paired_interval",
    "reliability_bins",
    "sensitivity_C",
    "top_k_accuracy",
    "wilson_interval",
]
