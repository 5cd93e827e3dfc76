"""Predictions against measurements: errors, order, intervals, and what was chosen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.metrics.share_intervals import share_interval
from skindx_bench.harness.result import Figure

Kind = Literal[
    "dense", "fused", "per-tensor", "fused+bf16", "topk", "gtopk", "powersgd", "hierarchical"
]


class Layout(Settings):
    """Nodes with as many ranks each."""

    nodes: int = Field(ge=1, le=16)
    ranks_per_node: int = Field(1, ge=1, le=8)

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.nodes * self.ranks_per_node


class Config(Settings):
    """Each part can be left out."""

    parts: tuple[Literal["waiting", "real", "public", "search"], ...] = (
        "waiting",
        "real",
        "public",
        "search",
    )
    """waiting: a rank waits as long as its layers would compute; real: ranks train."""
    layouts: tuple[Layout, ...] = (
        Layout(nodes=2),
        Layout(nodes=4),
        Layout(nodes=2, ranks_per_node=2),
    )
    rates_mbit: tuple[Annotated[float, Field(gt=0)], ...] = (100, 500, 1000)
    models: tuple[str, ...] = ("mobilenetv3_small_050", "mobilenetv2_100", "fc-heavy")
    """timm models; fc-heavy is two convolutions and three fully connected layers."""
    kinds: tuple[Kind, ...] = (
        "dense",
        "fused",
        "per-tensor",
        "fused+bf16",
        "topk",
        "gtopk",
        "powersgd",
        "hierarchical",
    )
    forward_s: float = Field(0.1, gt=0)
    backward_s: float = Field(0.2, gt=0)
    rounds: int = Field(5, ge=2)
    links_s: float = Field(30, gt=0)
    """Seconds in which the links of a layout are measured, at most."""
    real_models: tuple[str, ...] = ("test_resnet", "mobilenetv2_050")
    real_rates_mbit: tuple[Annotated[float, Field(gt=0)], ...] = (100, 1000)
    real_kinds: tuple[Kind, ...] = ("dense", "fused", "gtopk", "powersgd")
    real_size: int = Field(96, ge=32)
    real_batch: int = Field(32, ge=4)
    real_epochs: int = Field(3, ge=2)
    real_images: int = Field(192, ge=16)
    traces: Path | None = None
    """Folder with bcaffe_logdata and pipedream_profiles; none: the public part is left out."""


ALIKE = 0.02
"""Measurements that differ by less, relatively, have no order."""
_DRAWS = 2000


@dataclass(frozen=True)
class PlannedRow:
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
        """True when the measurement lies in the 90 % interval."""
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


def figures(rows: Sequence[PlannedRow]) -> dict[str, Figure]:
    """Return the figures over both parts, and the errors of each part, with 95 % intervals.

    Configurations of one group are measured on the same links, so they are drawn together.
    """
    found: dict[str, Figure] = {}
    for part, prefix in (("", ""), ("waiting", "waiting_"), ("real", "real_")):
        own = [row for row in rows if part in ("", row.part)]
        if own and (part == "" or len(own) < len(rows)):
            errors = [abs(row.error) for row in own]
            found[f"{prefix}step_error_mean"] = _drawn(fmean, errors, own, "of the step")
            found[f"{prefix}step_error_max"] = _drawn(max, errors, own, "of the step")
    if not rows:
        return found
    if memory := [row for row in rows if row.measured_bytes]:
        errors = [abs(row.predicted_bytes / row.measured_bytes - 1) for row in memory]
        found["memory_error_mean"] = _drawn(fmean, errors, memory, "of the memory")
    found["interval_coverage"] = _share([row.within for row in rows], rows, "of the steps")
    widths = [row.half_width for row in rows]
    found["interval_half_width"] = _drawn(fmean, widths, rows, "of the prediction")
    if chosen := chosen_over_best(rows):
        found["chosen_over_best"] = _drawn(fmean, *chosen, "×")
    if order := right_order(rows):
        found["order_right"] = _share(*order, "of the pairs")
    return found


def groups_of(rows: Sequence[PlannedRow]) -> Mapping[str, list[PlannedRow]]:
    """Return the rows of each group."""
    groups: dict[str, list[PlannedRow]] = {}
    for row in rows:
        groups.setdefault(_group(row), []).append(row)
    return groups


def chosen_over_best(rows: Sequence[PlannedRow]) -> tuple[list[float], list[PlannedRow]] | None:
    """Return the speed of what is chosen over the best that was measured, and what is chosen.

    One of each for each group; None where no group has a choice.
    """
    ratios, chosen = [], []
    for own in groups_of(rows).values():
        if len(own) > 1:
            chosen.append(min(own, key=lambda row: row.predicted_s))
            ratios.append(min(row.measured_s for row in own) / chosen[-1].measured_s)
    return (ratios, chosen) if ratios else None


def right_order(rows: Sequence[PlannedRow]) -> tuple[list[bool], list[PlannedRow]] | None:
    """Return which pairs of a group are ranked as measured, and the first of each pair.

    None without a pair that has an order.
    """
    right, firsts = [], []
    for own in groups_of(rows).values():
        for first, second in combinations(own, 2):
            if abs(first.measured_s / second.measured_s - 1) >= ALIKE:
                predicted = first.predicted_s < second.predicted_s
                right.append(predicted == (first.measured_s < second.measured_s))
                firsts.append(first)
    return (right, firsts) if right else None


def _group(row: PlannedRow) -> str:
    return f"{row.part} {row.group}"


def _share(hits: Sequence[bool], rows: Sequence[PlannedRow], unit: str) -> Figure:
    interval = share_interval(hits, [_group(row) for row in rows])
    return Figure.of(interval, unit, len(hits))


def _drawn(
    statistic: Callable[[Sequence[float]], float],
    values: Sequence[float],
    rows: Sequence[PlannedRow],
    unit: str,
) -> Figure:
    """Return a statistic of the rows' values with its bootstrap interval (Efron 1979) over groups.

    With a single group its range is given instead.
    """
    by_group: dict[str, list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        by_group.setdefault(_group(row), []).append(value)
    own = list(by_group.values())
    low, high = min(values), max(values)
    if len(own) > 1:
        random = np.random.default_rng(0)
        draws = [
            statistic([value for at in random.integers(0, len(own), len(own)) for value in own[at]])
            for _ in range(_DRAWS)
        ]
        low, high = (float(bound) for bound in np.quantile(draws, [0.025, 0.975]))
    value = statistic(values)
    return Figure(value, unit, len(values), (min(low, value), max(high, value)))
