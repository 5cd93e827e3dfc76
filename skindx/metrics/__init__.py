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
    top_k_accuracy,
)
from skindx.metrics.detection import DetectionScore, mean_average_precision
from skindx.metrics.measures import Measure, Ranked, Statistic
from skindx.metrics.operating_curves import (
    DecisionPoint,
    RocFigures,
    decision_curve,
    net_benefit,
    predictive_values,
    roc_figures,
)
from skindx.metrics.share_intervals import (
    Interval,
    difference_of,
    effective_size,
    proportion_interval,
    share_interval,
)
from skindx.metrics.simultaneous import GapTest, gap_test, simultaneous_levels

__all__ = [
    "DecisionPoint",
    "DetectionScore",
    "GapTest",
    "Interval",
    "McNemar",
    "Measure",
    "Ranked",
    "ReliabilityBin",
    "RiskPoint",
    "RocFigures",
    "Statistic",
    "auroc",
    "balanced_accuracy",
    "bootstrap_interval",
    "brier_score",
    "confidence_interval",
    "confusion_CC",
    "decision_curve",
    "difference_of",
    "effective_size",
    "expected_calibration_error",
    "gap_test",
    "macro_f1",
    "mcnemar",
    "mean_average_precision",
    "net_benefit",
    "paired_interval",
    "predictive_values",
    "proportion_interval",
    "reliability_bins",
    "risk_curve",
    "roc_figures",
    "share_interval",
    "simultaneous_levels",
    "top_k_accuracy",
]
