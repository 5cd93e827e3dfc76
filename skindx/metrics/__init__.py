"""Metrics of predictions with confidence intervals: numpy only, pycocotools inside mAP."""

from skindx.metrics.bootstrap import (
    GapTest,
    McNemar,
    bootstrap_interval,
    confidence_interval,
    gap_test,
    mcnemar,
    paired_interval,
    simultaneous_levels,
)
from skindx.metrics.classification import (
    DetectionScore,
    ReliabilityBin,
    RiskPoint,
    balanced_accuracy,
    balanced_rule,
    confusion_CC,
    mean_average_precision,
    reliability_bins,
    risk_curve,
)
from skindx.metrics.measures import ClasswiseGaps, Measure, Ranked, Statistic
from skindx.metrics.operating_curves import (
    DecisionPoint,
    decision_curve,
    predictive_values,
    roc_figures,
)
from skindx.metrics.share_intervals import (
    Interval,
    difference_of,
    proportion_interval,
    share_interval,
)

__all__ = [
    "ClasswiseGaps",
    "DecisionPoint",
    "DetectionScore",
    "GapTest",
    "Interval",
    "McNemar",
    "Measure",
    "Ranked",
    "ReliabilityBin",
    "RiskPoint",
    "Statistic",
    "balanced_accuracy",
    "balanced_rule",
    "bootstrap_interval",
    "confidence_interval",
    "confusion_CC",
    "decision_curve",
    "difference_of",
    "gap_test",
    "mcnemar",
    "mean_average_precision",
    "paired_interval",
    "predictive_values",
    "proportion_interval",
    "reliability_bins",
    "risk_curve",
    "roc_figures",
    "share_interval",
    "simultaneous_levels",
]
