"""How good a prediction is, with honest intervals: numpy only, pycocotools inside mAP."""

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
from skindx.metrics.intervals import (
    Interval,
    bootstrap_interval,
    effective_size,
    paired_interval,
    wilson_interval,
)
from skindx.metrics.mcnemar import McNemar, mcnemar
from skindx.metrics.measure import Measure
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
    "confusion_CC",
    "effective_size",
    "expected_calibration_error",
    "macro_f1",
    "mcnemar",
    "mean_average_precision",
    "paired_interval",
    "reliability_bins",
    "risk_curve",
    "sensitivity_C",
    "specificity_C",
    "top_k_accuracy",
    "wilson_interval",
]
