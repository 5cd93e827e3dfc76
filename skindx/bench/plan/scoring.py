"""Predictions against measurements: errors, order, intervals, and what was chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, quantiles

from skindx.bench.harness.clock import Figure

ALIKE = 0.02
"""Measurements that differ by less, relatively, have no order."""


@dataclass(frozen=True)
class Row:
    """One configuration."""

    part: str
    group: str
    """Configurations of one network on one cluster, among which a plan chooses."""
    kind: str
    predicted_s: float
    half_width: float
    measured_s: float
    predicted_bytes: float = 0.0
    measured_bytes: float = 0.0

    @property
    def error(self) -> float:
        """Of the prediction, over what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def within(self) -> bool:
        """What was measured lies in the 90 % interval."""
        width = 1 + self.half_width
        return self.predicted_s / width <= self.measured_s <= self.predicted_s * width

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "part": self.part,
            "group": self.group,
            "kind": self.kind,
            "predicted_s": self.predicted_s,
            "half_width": self.half_width,
            "measured_s": self.measured_s,
            "error": self.error,
            "predicted_bytes": self.predicted_bytes,
            "measured_bytes": self.measured_bytes,
        }


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Return the figures over both parts, and the errors of each part."""
    found: dict[str, Figure] = {}
    for part, prefix in (("", ""), ("waiting", "waiting_"), ("real", "real_")):
        own = [row for row in rows if part in ("", row.part)]
        if own and (part == "" or len(own) < len(rows)):
            errors = [abs(row.error) for row in own]
            found[f"{prefix}step_error_mean"] = _mean(errors, "of the step")
            found[f"{prefix}step_error_max"] = _mean([max(errors)], "of the step")
    if not rows:
        return found
    memory = [row for row in rows if row.measured_bytes]
    if memory:
        found["memory_error_mean"] = _mean(
            [abs(row.predicted_bytes / row.measured_bytes - 1) for row in memory], "of the memory"
        )
    found["interval_coverage"] = _mean([float(row.within) for row in rows], "of the steps")
    found["interval_half_width"] = _mean([row.half_width for row in rows], "of the prediction")
    if chosen := chosen_over_best(rows):
        found["chosen_over_best"] = _mean(chosen, "×")
    if (order := right_order(rows)) is not None:
        found["order_right"] = order
    return found


def groups_of(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Return the rows of each group."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row.part} {row.group}", []).append(row)
    return groups


def chosen_over_best(rows: Sequence[Row]) -> list[float]:
    """Return, for each group, the speed of what is chosen over the best that was measured."""
    found = []
    for own in groups_of(rows).values():
        if len(own) > 1:
            chosen = min(own, key=lambda row: row.predicted_s)
            found.append(min(row.measured_s for row in own) / chosen.measured_s)
    return found


def right_order(rows: Sequence[Row]) -> Figure | None:
    """Return the share of pairs of a group that are ranked as measured."""
    right = total = 0
    for own in groups_of(rows).values():
        for first, second in combinations(own, 2):
            if abs(first.measured_s / second.measured_s - 1) >= ALIKE:
                total += 1
                right += (first.predicted_s < second.predicted_s) == (
                    first.measured_s < second.measured_s
                )
    return Figure(right / total, "of the pairs", total, (right / total,) * 2) if total else None


def _mean(values: Sequence[float], unit: str) -> Figure:
    low, _, high = (
        quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    )
    return Figure(fmean(values), unit, len(values), (low, high))
