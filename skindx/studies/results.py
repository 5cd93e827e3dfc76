"""What an evaluation found: plain values, ready for JSON."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Protocol

from skindx.metrics import DetectionScore, Interval, ReliabilityBin


class ClassInfo(Protocol):
    """What a score needs to know of a class; `skindx.taxonomy.SkinClass` is one."""

    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def urgency(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Scores:
    """The headline figures of one predictor."""

    name: str
    top1: Interval
    top_k: Interval
    balanced_accuracy: Interval
    calibration_error: Interval


@dataclass(frozen=True, slots=True)
class ClassScore:
    """How many of a class's `n` pictures are found; the interval counts each group once."""

    key: str
    name: str
    urgency: str
    n: int
    found: int
    sensitivity: Interval


@dataclass(frozen=True, slots=True)
class Difference:
    """Ensemble minus its best member by top-1, paired on the same resampled groups."""

    member: str
    top1: Interval
    balanced_accuracy: Interval


@dataclass(frozen=True, slots=True)
class UrgentMisses:
    """Pictures of urgent classes whose likeliest class is not an urgent one."""

    n: int
    missed: int
    rate: Interval


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
    urgent: UrgentMisses | None
    """None when no picture is of an urgent class."""
    has_detector: bool
    detector: DetectionScore | None
    """None without a detector, or when no picture has a drawn box."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a figure that is not defined is None."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
