"""The figures by skin type and by source: fairlearn's MetricFrame, with intervals over groups."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skindx.core.machine import how_to_install
from skindx.evaluation.answers import Answers, Ints, Strings
from skindx.evaluation.headline import LEVEL, SEED
from skindx.evaluation.misses import UrgentMisses, share, urgent_misses
from skindx.metrics import Interval, Statistic, confidence_interval

# N = images

UNKNOWN = "not known"
MISSING = f"not broken down: this needs fairlearn; run {how_to_install('audit')}"


@dataclass(frozen=True, slots=True)
class Part:
    """The images of one value, such as skin type II; few images give wide intervals."""

    value: str
    n: int
    groups: int
    top1: Interval
    balanced_accuracy: Interval
    urgent: UrgentMisses | None


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One attribute; `note` says why there are no parts, "" where there are."""

    attribute: str
    parts: tuple[Part, ...]
    top1_gap: float
    """Greatest minus least top-1 among the known values; NaN for fewer than two."""
    note: str = ""


def breakdowns(answers: Answers, *, draws: int) -> tuple[Breakdown, ...]:
    """Break the figures down by skin type and by source, where the manifest knows them."""
    return tuple(
        _break_down(attribute, values, answers, draws)
        for attribute, values in (
            ("skin type", [skin_type_name(skin_type) for skin_type in answers.skin_types]),
            ("source", [source or UNKNOWN for source in answers.sources]),
        )
    )


def skin_type_name(skin_type: int | None) -> str:
    """Name a Fitzpatrick type with its Roman numeral."""
    return UNKNOWN if skin_type is None else ("I", "II", "III", "IV", "V", "VI")[skin_type - 1]


def order(values: Sequence[str]) -> list[str]:
    """Return the distinct values, the unknown last."""
    return sorted(set(values), key=lambda value: (value == UNKNOWN, value))


def _break_down(attribute: str, values: Sequence[str], answers: Answers, draws: int) -> Breakdown:
    if set(values) == {UNKNOWN}:
        return Breakdown(attribute, (), float("nan"), f"the manifest names no {attribute}")
    if importlib.util.find_spec("fairlearn") is None:
        return Breakdown(attribute, (), float("nan"), MISSING)
    values_N = np.array(values)
    parts = tuple(_part(value, answers.some(values_N == value), draws) for value in order(values))
    return Breakdown(attribute, parts, _gap(answers, values_N))


def _gap(answers: Answers, values_N: Strings) -> float:
    from fairlearn.metrics import MetricFrame

    known_N = values_N != UNKNOWN
    if len(set(values_N[known_N])) < 2:
        return float("nan")
    frame = MetricFrame(
        metrics=_accuracy,
        y_true=answers.truth_N[known_N],
        y_pred=answers.predicted_N[known_N],
        sensitive_features=values_N[known_N],
    )
    return float(frame.difference(method="between_groups"))


def _accuracy(truth_N: Ints, predicted_N: Ints) -> float:
    return float(np.mean(np.asarray(truth_N) == np.asarray(predicted_N)))


def _part(value: str, part: Answers, draws: int) -> Part:
    balanced = Statistic.balanced_accuracy(part.ensemble_NC, part.truth_N)
    return Part(
        value,
        len(part),
        len(np.unique(part.groups_N)),
        share(part.right_N, np.ones(len(part), dtype=bool), part),
        confidence_interval(balanced, part.groups_N, draws=draws, level=LEVEL, seed=SEED),
        urgent_misses(part),
    )
