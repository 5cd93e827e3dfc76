"""Misses of urgent classes and cancers, and the figures by person, place, source and label.

Intervals of the parts of one attribute hold together; the largest gap is tested by permutation.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.evaluation.answers import Answers, Floats, Ints
from skindx.evaluation.figures import LEVEL, SEED
from skindx.metrics import (
    GapTest,
    Interval,
    Measure,
    Ranked,
    Statistic,
    confidence_interval,
    gap_test,
    share_interval,
    simultaneous_levels,
)
from skindx.models.urgent_risk import UrgentRiskRule, urgent_risks
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
    groups: int
    """Lesions, patients or clusters of copies that the `n` images are of."""


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Images of other classes for which an urgent class was named: what safety costs."""

    n: int
    raised: int
    rate: Interval
    groups: int
    """Lesions, patients or clusters of copies that the `n` images are of."""


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
    groups: int
    """Lesions, patients or clusters of copies that the `n` images are of."""


def urgent_misses(answers: Answers) -> UrgentMisses | None:
    """Count the missed images of urgent classes; None when there is none to miss."""
    urgent_N, called_N = answers.urgent_C[answers.truth_N], answers.urgent_C[answers.predicted_N]
    return missed_of(urgent_N & ~called_N, urgent_N, answers)


def missed_of(
    missed_N: Bools, urgent_N: Bools, answers: Answers, level: float = LEVEL
) -> UrgentMisses | None:
    """Count missed images of urgent classes; None when there is none to miss."""
    n, missed = int(urgent_N.sum()), int(missed_N.sum())
    rate, groups = share(missed_N, urgent_N, answers, level), groups_among(urgent_N, answers)
    return UrgentMisses(n, missed, rate, groups) if n else None


def raised_of(
    raised_N: Bools, other_N: Bools, answers: Answers, level: float = LEVEL
) -> FalseAlarms | None:
    """Count images of other classes that are called urgent; None when there is no such image."""
    n, raised = int(other_N.sum()), int(raised_N.sum())
    rate, groups = share(raised_N, other_N, answers, level), groups_among(other_N, answers)
    return FalseAlarms(n, raised, rate, groups) if n else None


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
            groups_among(this_N, answers),
        )

    return tuple(map(one, CANCERS))


def cancer_of(skin_class: SkinClass) -> str:
    """Return which of the three cancers a class means, "" for none."""
    for name, (code, words) in CANCERS.items():
        icd10 = skin_class.icd10
        if re.match(code, icd10) if icd10 else words in normalise(skin_class.name):
            return name
    return ""


def share(
    hits_N: NDArray[Any], among_N: NDArray[Any], answers: Answers, level: float = LEVEL
) -> Interval:
    """Return the share of hits among some of the images, with its exact interval over groups."""
    return share_interval(hits_N[among_N], answers.groups_N[among_N], level=level)


def groups_among(among_N: NDArray[Any], answers: Answers) -> int:
    """Return how many groups some of the images are of: lesions, patients, clusters of copies."""
    return len(np.unique(answers.groups_N[among_N]))


# N = images, K = parts

UNKNOWN = "not known"
LEAST_IMAGES, LEAST_GROUPS, LEAST_URGENT = 30, 10, 10
"""Fewest images and groups of a part that has figures, and fewest urgent images, and others."""
NOTHING = Interval(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True, slots=True)
class BreakdownPart:
    """The images of one value, such as skin type II."""

    value: str
    n: int
    groups: int
    few: bool
    """Too few images to say anything of: its figures are not defined."""
    top1: Interval
    balanced_accuracy: Interval
    urgent_auroc: Interval
    """AUROC of the urgent risk; not defined with too few images of either kind."""
    urgent: UrgentMisses | None
    """Misses at the urgent risk's threshold, without one by the likeliest class; None: too few."""
    others: FalseAlarms | None
    """Images of other classes that the same rule calls urgent; None: too few."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One attribute; `note` says why there are no parts, "" where there are."""

    attribute: str
    parts: tuple[BreakdownPart, ...]
    top1_gap: float
    """Greatest minus least top-1 among the known values with enough images; NaN for fewer than two.
    """
    note: str = ""
    top1_test: GapTest | None = None
    """Whether top-1 depends on the value, beyond what the classes explain."""
    urgent_test: GapTest | None = None
    """Whether misses of urgent images depend on the value, beyond what the classes explain."""


def breakdowns(answers: Answers, *, draws: int) -> tuple[Breakdown, ...]:
    """Break the figures down by each attribute that the manifest knows."""

    def named(fact: str) -> list[str]:
        return [one or UNKNOWN for one in answers.facts.get(fact, [""] * len(answers))]

    columns = {
        "skin type": [skin_type_name(skin_type) for skin_type in answers.skin_types],
        "age": [age_band(age) for age in answers.facts.get("age", [None] * len(answers))],
        "sex": named("sex"),
        "site": named("site"),
        "source": [source or UNKNOWN for source in answers.sources],
        "confirmation": named("confirmed_by"),
    }
    return tuple(_break_down(name, values, answers, draws) for name, values in columns.items())


def skin_type_name(skin_type: int | None) -> str:
    """Name a Fitzpatrick type with its Roman numeral."""
    return UNKNOWN if skin_type is None else ("I", "II", "III", "IV", "V", "VI")[skin_type - 1]


_BANDS = ((30, "0 to 29"), (45, "30 to 44"), (60, "45 to 59"), (75, "60 to 74"))


def age_band(age: float | None) -> str:
    """Name the band of an age in years."""
    if age is None:
        return UNKNOWN
    return next((name for end, name in _BANDS if age < end), "75 and more")


def order(values: Sequence[str]) -> list[str]:
    """Return the distinct values, the unknown last."""
    return sorted(set(values), key=lambda value: (value == UNKNOWN, value))


def _break_down(attribute: str, values: Sequence[str], answers: Answers, draws: int) -> Breakdown:
    if set(values) == {UNKNOWN}:
        return Breakdown(attribute, (), float("nan"), f"the manifest names no {attribute}")
    values_N, urgent_N = np.array(values), answers.urgent_C[answers.truth_N]
    risk_N = urgent_risks(answers.ensemble_NC, np.flatnonzero(answers.urgent_C).tolist())
    called_N = called_positive(answers, answers.urgent_C, answers.urgent_risk)
    missed_N, raised_N = urgent_N & ~called_N, ~urgent_N & called_N
    every = [(value, np.flatnonzero(values_N == value)) for value in order(values)]
    rows = {value: places for value, places in every if _enough(answers, places)}
    of_urgent = {
        value: places
        for value, places in rows.items()
        if min(urgent_N[places].sum(), (~urgent_N[places]).sum()) >= LEAST_URGENT
    }
    measures: dict[str, dict[str, tuple[Measure, Ints]]] = {
        "top1": {v: (Statistic.share(answers.right_N[p]), p) for v, p in rows.items()},
        "balanced_accuracy": {
            v: (Statistic.balanced_accuracy(answers.ensemble_NC[p], answers.truth_N[p]), p)
            for v, p in rows.items()
        },
        "urgent_auroc": {v: (_auroc(risk_N[p], urgent_N[p]), p) for v, p in of_urgent.items()},
        "urgent": {
            v: (Statistic.share(missed_N[p[urgent_N[p]]]), p[urgent_N[p]])
            for v, p in of_urgent.items()
        },
        "others": {
            v: (Statistic.share(raised_N[p[~urgent_N[p]]]), p[~urgent_N[p]])
            for v, p in of_urgent.items()
        },
    }
    levels = simultaneous_levels(
        {name: list(parts.values()) for name, parts in measures.items()},
        answers.groups_N, draws=draws, level=LEVEL, seed=SEED,
    )  # fmt: skip

    def figure(name: str, value: str) -> Interval:
        if value not in measures[name]:
            return NOTHING
        measure, places = measures[name][value]
        groups_N = answers.groups_N[places]
        return confidence_interval(measure, groups_N, draws=draws, level=levels[name], seed=SEED)

    def calls(value: str, places: Ints) -> tuple[UrgentMisses | None, FalseAlarms | None]:
        if value not in of_urgent:
            return None, None
        part, of_N = answers.some(places), urgent_N[places]
        return (
            missed_of(missed_N[places], of_N, part, levels["urgent"]),
            raised_of(raised_N[places], ~of_N, part, levels["others"]),
        )

    parts = tuple(
        BreakdownPart(
            value,
            len(places),
            len(np.unique(answers.groups_N[places])),
            value not in rows,
            figure("top1", value),
            figure("balanced_accuracy", value),
            figure("urgent_auroc", value),
            *calls(value, places),
        )
        for value, places in every
    )

    def test(hits_N: Bools, of: dict[str, Ints], among_N: Bools) -> GapTest | None:
        some_N = among_N & np.isin(values_N, [value for value in of if value != UNKNOWN])
        return gap_test(
            hits_N[some_N],
            values_N[some_N],
            answers.truth_N[some_N],
            answers.groups_N[some_N],
            permutations=draws,
            seed=SEED,
        )

    known = [part.top1.value for part in parts if part.value in rows and part.value != UNKNOWN]
    return Breakdown(
        attribute,
        parts,
        max(known) - min(known) if len(known) > 1 else float("nan"),
        top1_test=test(answers.right_N, rows, np.ones(len(answers), dtype=bool)),
        urgent_test=test(missed_N, of_urgent, urgent_N),
    )


def called_positive(answers: Answers, of_C: Bools, rule: UrgentRiskRule | None) -> Bools:
    """Return which images are called so: by the rule's threshold, else by the likeliest class."""
    if rule is None:
        return of_C[answers.predicted_N]
    level = rule.level(answers.miss_rate)
    return rule.risks(answers.ensemble_NC) >= rule.thresholds(level, answers.skin_types)


def _enough(answers: Answers, places: Ints) -> bool:
    groups = len(np.unique(answers.groups_N[places]))
    return len(places) >= LEAST_IMAGES and groups >= LEAST_GROUPS


def _auroc(risk_N: Floats, urgent_N: Bools) -> Measure:
    return Ranked.auroc(np.column_stack([1 - risk_N, risk_N]), urgent_N.astype(np.intp), [1])
