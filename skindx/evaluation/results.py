"""Results of an evaluation: plain values, ready for JSON."""

from dataclasses import dataclass
from typing import Any

from skindx.evaluation.assisted import Assisted
from skindx.evaluation.breakdown import Breakdown
from skindx.evaluation.external import External
from skindx.evaluation.formatting import plain
from skindx.evaluation.headline import Scores
from skindx.evaluation.misses import CancerMisses, UrgentMisses
from skindx.evaluation.ood_score import OodScore
from skindx.evaluation.set_scores import SetScores
from skindx.evaluation.urgent_scores import UrgentRiskScores
from skindx.metrics import DetectionScore, Interval, ReliabilityBin, RiskPoint


@dataclass(frozen=True, slots=True)
class ClassScore:
    """How many of a class's `n` images are found; intervals count each group once.

    `called` counts the images of other classes that were given this name.
    """

    key: str
    name: str
    urgency: str
    n: int
    found: int
    sensitivity: Interval
    called: int
    specificity: Interval


@dataclass(frozen=True, slots=True)
class Difference:
    """Ensemble minus its best member by top-1, paired on the same resampled groups."""

    member: str
    top1: Interval
    balanced_accuracy: Interval


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything measured on one split; `k` is 5, or the number of classes if that is less."""

    pictures: int
    groups: int
    draws: int
    level: float
    k: int
    ensemble: Scores
    members: tuple[Scores, ...]
    difference: Difference | None
    """None when there is only one member."""
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...]
    """Rows are true classes, columns predicted ones, in the order of `classes`."""
    reliability: tuple[ReliabilityBin, ...]
    risk_curve: tuple[RiskPoint, ...]
    urgent: UrgentMisses | None
    """None when no image is of an urgent class."""
    cancers: tuple[CancerMisses, ...]
    sets: SetScores | None
    """None for a bundle without conformal sets."""
    urgent_risk: UrgentRiskScores | None
    """None for a bundle without a threshold of the urgent risk."""
    breakdowns: tuple[Breakdown, ...]
    has_detector: bool
    detector: DetectionScore | None
    """None without a detector, or when no image has a drawn box."""
    external: External | None
    """None when the dataset has the bundle's classes."""
    assisted: Assisted | None = None
    """Effect of boxes; None for a bundle without a fusion weight."""
    seen: int = 0
    """Images that were left out, because the bundle was made from them."""
    ood: OodScore | None = None
    """Refusals of the out-of-distribution check; None for a bundle without one."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a figure that is not defined is None."""
        values: dict[str, Any] = plain(self)
        return values
