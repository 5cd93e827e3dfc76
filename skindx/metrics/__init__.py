"""Metrics of predictions with confidence intervals: numpy only, pycocotools inside mAP."""

from skindx.metrics.classification import (
    ReliabilityBin,
    auroc,
    balanced_accuracy,
    brier_score,
    confusion_CC,
    expected_calibration_error,
    macro_f1,
    reliability_bins,
    sensitivity_C,
    specificity_C,
    top_k_accuracy,
)
from skindx.metrics.detection import DetectionScore, mean_average_precision
from skindx.metrics.inputs import Interval
from skindx.metrics.intervals import bootstrap_interval, confidence_interval, paired_interval
from skindx.metrics.mcnemar import McNemar, mcnemar
from skindx.metrics.measure import Measure
from skindx.metrics.proportion import effective_size, proportion_interval, share_interval
from skindx.metrics.ranked import Ranked
from skindx.metrics.selective import RiskPoint, risk_curve
from skindx.metrics.statistic import Statistic

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
