"""Metrics of predictions with confidence intervals: numpy only, pycocotools inside mAP."""

from skindx.metrics.bootstrap import (
    McNemar,
    bootstrap_interval,
    confidence_interval,
    mcnemar,
    paired_interval,
)
from skindx.metrics.classification import (
    ReliabilityBin,
    RiskPoint,
    auroc,
    balanced_accuracy,
    brier_score,
    confusion_CC,
    expected_calibration_error,
    macro_f1,
    reliability_bins,
    risk_curve,
    sensitivity_C,
    specificity_C,
    top_k_accuracy,
)
from skindx.metrics.detection import DetectionScore, mean_average_precision
from skindx.metrics.measures import Measure, Ranked, Statistic
from skindx.metrics.share_intervals import (
    Interval,
    difference_of,
    effective_size,
    proportion_interval,
    share_interval,
)

__all__ = [
    "DetectionScore",
    "Interval",
    "McNemar",
    "Measure",
    "Ranked",
    "ReliabilityBin",
    "RiskPoint",
    "Statistic",
    "auroc",
    "balanced_accuracy",
    "bootstrap_interval",
    "brier_score",
    "confidence_interval",
    "confusion_CC",
    "difference_of",
    "effective_size",
    "expected_calibration_error",
    "macro_f1",
    "mcnemar",
    "mean_average_precision",
    "paired_interval",
    "proportion_interval",
    "reliability_bins",
    "risk_curve",
    "sensitivity_C",
    "share_interval",
    "specificity_C",
    "top_k_accuracy",
]
