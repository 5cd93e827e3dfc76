"""Misses of urgent classes and cancers, and the figures by skin type and by source.

The breakdown is fairlearn's MetricFrame, with intervals over groups.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import how_to_install
from skindx.evaluation.answers import Answers, Ints, Strings
from skindx.evaluation.figures import LEVEL, SEED
from skindx.metrics import Interval, Statistic, confidence_interval, share_interval
from skindx.taxonomy import SkinClass, normalise

# N = images, C = classes

Bools = NDArray[np.bool_]

CANCERS = {
    "Melanoma": (r"C43|D03", "melanoma"),
    "Squamous cell carcinoma": (r"C44\.\d2|D04", "squamouscellcarcinoma"),
    "Basal cell carcinoma": (r"C44\.\d1", "basalcellcarcinoma"),
}
"""Name -> how its classes are recognised: by the start of their ICD-10-CM code (in situ too), where
they have none by what their name holds."""


@dataclass(frozen=True, slots=True)
class UrgentMisses:
    """Images of urgent classes for which no urgent class was named."""

    n: int
    missed: int
    rate: Interval


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Images of other classes for which an urgent class was named: what safety costs."""

    n: int
    raised: int
    rate: Interval


@dataclass(frozen=True, slots=True)
class CancerMisses:
    """One of the three cancers; a class of the other two still warns the reader.

    `missed` images have a likeliest class that is not this cancer, `unwarned` of them one that
    is none of the three.
    """

    name: str
    classes: tuple[str, ...]
    """The keys that mean this cancer; () when the predictor has no such class."""
    n: int
    missed: int
    rate: Interval
    unwarned: int
    unwarned_rate: Interval


def urgent_misses(answers: Answers) -> UrgentMisses | None:
    """Count the missed images of urgent classes; None when there is none to miss."""
    urgent_N, called_N = answers.urgent_C[answers.truth_N], answers.urgent_C[answers.predicted_N]
    return missed_of(urgent_N & ~called_N, urgent_N, answers)


def missed_of(missed_N: Bools, urgent_N: Bools, answers: Answers) -> UrgentMisses | None:
    """Count missed images of urgent classes; None when there is none to miss."""
    n = int(urgent_N.sum())
    return UrgentMisses(n, int(missed_N.sum()), share(missed_N, urgent_N, answers)) if n else None


def raised_of(raised_N: Bools, other_N: Bools, answers: Answers) -> FalseAlarms | None:
    """Count images of other classes that are called urgent; None when there is no such image."""
    n = int(other_N.sum())
    return FalseAlarms(n, int(raised_N.sum()), share(raised_N, other_N, answers)) if n else None


def cancer_misses(answers: Answers) -> tuple[CancerMisses, ...]:
    """Count the missed images of each of the three cancers, also of one without images."""
    kind_C = np.array([cancer_of(skin_class) for skin_class in answers.classes])
    cancer_N, called_N = kind_C[answers.truth_N], kind_C[answers.predicted_N]

    def one(name: str) -> CancerMisses:
        this_N = cancer_N == name
        missed_N, unwarned_N = this_N & (called_N != name), this_N & (called_N == "")
        keys = [answers.classes[i].key for i in np.flatnonzero(kind_C == name)]
        return CancerMisses(
            name,
            tuple(keys),
            int(this_N.sum()),
            int(missed_N.sum()),
            share(missed_N, this_N, answers),
            int(unwarned_N.sum()),
            share(unwarned_N, this_N, answers),
        )

    return tuple(map(one, CANCERS))


def cancer_of(skin_class: SkinClass) -> str:
    """Return which of the three cancers a class means, "" for none."""
    for name, (code, words) in CANCERS.items():
        icd10 = skin_class.icd10
        if re.match(code, icd10) if icd10 else words in normalise(skin_class.name):
            return name
    return ""


def share(hits_N: NDArray[Any], among_N: NDArray[Any], answers: Answers) -> Interval:
    """Return the share of hits among some of the images, with its exact interval over groups."""
    return share_interval(hits_N[among_N], answers.groups_N[among_N], level=LEVEL)


# N = images

UNKNOWN = "not known"
MISSING = f"not broken down: this needs fairlearn; run {how_to_install('audit')}"


@dataclass(frozen=True, slots=True)
class BreakdownPart:
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
    parts: tuple[BreakdownPart, ...]
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


def _part(value: str, part: Answers, draws: int) -> BreakdownPart:
    balanced = Statistic.balanced_accuracy(part.ensemble_NC, part.truth_N)
    return BreakdownPart(
        value,
        len(part),
        len(np.unique(part.groups_N)),
        share(part.right_N, np.ones(len(part), dtype=bool), part),
        confidence_interval(balanced, part.groups_N, draws=draws, level=LEVEL, seed=SEED),
        urgent_misses(part),
    )
