"""What changes elsewhere: one bundle at unchanged thresholds, on images of its own and of others.

Both samples are independent, so their intervals are joined by the square-and-add rule (Zou and
Donner 2008). Internal figures are of the classes that the external set has, so that a change is
not one of the question.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from skindx.core.errors import UserError
from skindx.core.untrusted import MALFORMED
from skindx.evaluation.answers import (
    PREDICTIONS,
    Answers,
    Floats,
    Ints,
    Strings,
    read_predictions,
    unusable,
)
from skindx.evaluation.breakdown import NOTHING, Bools
from skindx.evaluation.figures import LEVEL, SEED
from skindx.metrics import (
    Interval,
    Measure,
    Ranked,
    Statistic,
    confidence_interval,
    difference_of,
    share_interval,
)
from skindx.metrics.share_intervals import class_mean_interval, mean_of
from skindx.models.urgent_risk import QUESTIONS, Question, UrgentRiskRule
from skindx.taxonomy import SkinClass

# N = images

FEWEST = 20
"""A class of fewer images, here or there, has no figures of its own and is in no mean."""

Figures = dict[str, Interval]
Called = dict[Question, tuple[Bools, Bools]]
"""Two masks a question: images that are called positive, and images that are positive."""

TITLES: dict[str, tuple[str, Literal["percent", "decimal"]]] = {
    "auroc": ("AUROC, mean of classes", "decimal"),
    "balanced_accuracy": ("balanced accuracy", "percent"),
    "urgent_sensitivity": ("urgent images called urgent", "percent"),
    "urgent_specificity": ("other images not called urgent", "percent"),
    "soon_sensitivity": ("urgent or soon images called at least soon", "percent"),
    "soon_specificity": ("other images not called so", "percent"),
    "coverage": ("sets that hold the true class", "percent"),
    "set_size": ("classes in a set", "decimal"),
    "calibration_error": ("calibration error", "decimal"),
    "log_loss": ("log loss", "decimal"),
    "refused": ("refused as out of distribution", "percent"),
    "abstained": ("no condition named with confidence", "percent"),
}
"""Key -> title and unit; a figure that neither side has is left out."""


@dataclass(frozen=True, slots=True)
class Change:
    """A figure on internal and on external images; `change` is the second minus the first."""

    key: str
    title: str
    unit: Literal["percent", "decimal"]
    internal: Interval
    external: Interval
    change: Interval


@dataclass(frozen=True, slots=True)
class ClassChange:
    """A class with enough images on both sides: AUROC against the rest, and sensitivity."""

    key: str
    name: str
    internal_images: int
    external_images: int
    auroc: Change
    sensitivity: Change


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The table of changes; `stored` says that internal figures are those the bundle holds."""

    internal_images: int
    internal_groups: int
    stored: bool
    fewest: int
    changes: tuple[Change, ...]
    classes: tuple[ClassChange, ...]
    few: dict[str, tuple[int, int]]
    """Classes with too few images for figures of their own: internal and external images."""
    absent: tuple[str, ...]
    """Classes of the bundle without an external image."""


@dataclass(frozen=True)
class Internal:
    """An evaluation of the bundle on its own dataset: answers, or the figures that it holds."""

    answers: Answers | None
    metrics: dict[str, Any]


def read_internal(
    bundle: Path,
    evaluation: Path | None,
    metrics: dict[str, Any] | None,
    classes: Sequence[SkinClass],
    rule: UrgentRiskRule | None,
) -> Internal:
    """Return the evaluation that external figures are compared with.

    That is `evaluation`, or the folder beside the bundle, or else the figures that the bundle
    holds. Raises UserError for a bundle that was never evaluated, and for the evaluation of
    another bundle or of an external dataset.
    """
    beside = bundle.resolve().parent / "evaluation"
    folder = evaluation or (beside if (beside / PREDICTIONS).is_file() else None)
    if folder is None:
        if metrics is None:
            raise UserError(
                f"{bundle} has no evaluation on its own dataset to compare with; run `skindx "
                f"evaluate {bundle} DATASET` with the dataset that it was trained on, or give the "
                "folder of that evaluation with --internal."
            )
        return Internal(None, metrics)
    answers = read_predictions(folder)
    ours = [skin_class.key for skin_class in classes]
    same = [
        skin_class.key for skin_class in answers.classes
    ] == ours and answers.urgent_risk == rule
    if not same:
        raise UserError(
            f"{folder} is an evaluation of another bundle, or of {bundle} with other thresholds; "
            f"run `skindx evaluate {bundle} DATASET` on the dataset that it was trained on, and "
            "give the new folder with --internal."
        )
    try:
        figures = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        apart = figures.get("external") or figures["origin"]["split"] == "all"
    except (OSError, *MALFORMED) as error:
        raise unusable(folder / "metrics.json", error) from None
    if apart:
        raise UserError(
            f"{folder} is an evaluation on an external dataset; give --internal an evaluation on "
            "the test split of the bundle's own dataset."
        )
    return Internal(answers, figures)


def compare_elsewhere(internal: Internal, external: Answers, *, draws: int) -> Elsewhere:
    """Compare figures of both at the thresholds that the bundle has."""
    classes = external.classes
    there_C = np.bincount(external.truth_N, minlength=len(classes))
    home = internal.answers
    if home is not None:
        home = home.some((there_C > 0)[home.truth_N])
        here_C = np.bincount(home.truth_N, minlength=len(classes))
    else:
        counts = {row["key"]: row["n"] for row in internal.metrics["classes"]}
        here_C = np.array([counts.get(skin_class.key, 0) for skin_class in classes])
    enough = [c for c in range(len(classes)) if min(here_C[c], there_C[c]) >= FEWEST]
    if home is not None and len(home):
        before = figures_of(Judged.from_answers(home), enough, draws=draws)
    else:
        before = _stored(internal.metrics, enough, external)
    after = figures_of(Judged.from_answers(external), enough, draws=draws)
    titles = dict(TITLES)
    for c in enough:
        titles[f"auroc {c}"] = ("AUROC", "decimal")
        titles[f"sensitivity {c}"] = ("named rightly", "percent")
    rows = {key: _change(key, *titles[key], before, after) for key in titles}
    return Elsewhere(
        internal_images=len(home) if home is not None else int(internal.metrics["pictures"]),
        internal_groups=(
            len(np.unique(home.groups_N)) if home is not None else int(internal.metrics["groups"])
        ),
        stored=home is None,
        fewest=FEWEST,
        changes=tuple(rows[key] for key in TITLES if key in before or key in after),
        classes=tuple(
            ClassChange(
                classes[c].key,
                classes[c].name,
                int(here_C[c]),
                int(there_C[c]),
                rows[f"auroc {c}"],
                rows[f"sensitivity {c}"],
            )
            for c in enough
        ),
        few={
            classes[c].name: (int(here_C[c]), int(there_C[c]))
            for c in np.flatnonzero(there_C).tolist()
            if c not in enough
        },
        absent=tuple(
            skin_class.name for skin_class, n in zip(classes, there_C, strict=True) if not n
        ),
    )


def _change(
    key: str, title: str, unit: Literal["percent", "decimal"], before: Figures, after: Figures
) -> Change:
    one, other = before.get(key, NOTHING), after.get(key, NOTHING)
    return Change(key, title, unit, one, other, difference_of(other, one))


@dataclass(frozen=True)
class Judged:
    """Answers to labelled images, with what was decided of each; None where nothing decides."""

    probabilities_NC: Floats
    truth_N: Ints
    groups_N: Strings
    sets_NC: Bools | None = None
    called: Called = field(default_factory=dict)
    refused_N: Bools | None = None
    abstained_N: Bools | None = None

    @classmethod
    def from_answers(cls, answers: Answers) -> Self:
        """Decide as the predictor's thresholds do."""
        called: Called = {}
        for question in QUESTIONS:
            rule: UrgentRiskRule | None = getattr(answers, question)
            if rule is not None:
                called[question] = called_by(
                    rule, answers.miss_rate, answers.ensemble_NC, answers.truth_N,
                    answers.skin_types,
                )  # fmt: skip
        refused_N = None if answers.ood_N is None else answers.ood_N <= (answers.ood_rate or 0)
        return cls(
            answers.ensemble_NC,
            answers.truth_N,
            answers.groups_N,
            answers.sets_NC,
            called,
            refused_N,
            answers.abstained_N,
        )


def called_by(
    rule: UrgentRiskRule,
    miss_rate: float | None,
    probabilities_NC: Floats,
    truth_N: Ints,
    skin_types: Sequence[int | None],
) -> tuple[Bools, Bools]:
    """Return which images reach the threshold, and which are of the rule's classes."""
    thresholds_N = rule.thresholds(rule.level(miss_rate), skin_types)
    return rule.risks(probabilities_NC) >= thresholds_N, np.isin(truth_N, rule.urgent_columns)


def figures_of(judged: Judged, enough: Sequence[int], *, draws: int) -> Figures:
    """Return the figures of TITLES, and `auroc C` and `sensitivity C` of the classes `enough`.

    Means over classes are over `enough`; all other figures are of all images.
    """
    p_NC, truth_N, groups_N = judged.probabilities_NC, judged.truth_N, judged.groups_N
    right_N, among_N = p_NC.argmax(axis=1) == truth_N, np.isin(truth_N, enough)

    def interval(measure: Measure) -> Interval:
        return confidence_interval(measure, groups_N, draws=draws, level=LEVEL, seed=SEED)

    figures: Figures = {
        "calibration_error": interval(Statistic.calibration_error(p_NC, truth_N)),
        "log_loss": interval(Statistic.log_loss(p_NC, truth_N)),
    }
    if among_N.any():
        figures["balanced_accuracy"] = class_mean_interval(
            right_N[among_N], truth_N[among_N], groups_N[among_N], level=LEVEL
        )
        figures["auroc"] = interval(Ranked.auroc(p_NC, truth_N, enough))
    for c in enough:
        figures[f"auroc {c}"] = interval(Ranked.auroc(p_NC, truth_N, [c]))
        of_N = truth_N == c
        figures[f"sensitivity {c}"] = share_interval(right_N[of_N], groups_N[of_N])
    for question, (called_N, is_N) in judged.called.items():
        name = question.removesuffix("_risk")
        for key, of_N, hits_N in (
            (f"{name}_sensitivity", is_N, called_N),
            (f"{name}_specificity", ~is_N, ~called_N),
        ):
            if of_N.any():
                figures[key] = share_interval(hits_N[of_N], groups_N[of_N])
    if judged.sets_NC is not None:
        figures["coverage"] = interval(Statistic.set_coverage(judged.sets_NC, truth_N))
        figures["set_size"] = interval(Statistic.set_size(judged.sets_NC))
    for key, all_N in (("refused", judged.refused_N), ("abstained", judged.abstained_N)):
        if all_N is not None:
            figures[key] = share_interval(all_N, groups_N)
    return figures


def _stored(metrics: dict[str, Any], enough: Sequence[int], external: Answers) -> Figures:
    """Return what a stored evaluation has of the same figures.

    Those of all its classes against each other are left out unless the external set has them all.
    """
    sets, ood = metrics.get("sets") or {}, metrics.get("ood") or {}
    rows = {row["key"]: row for row in metrics["classes"]}
    figures = {
        f"sensitivity {c}": _interval(rows[external.classes[c].key]["sensitivity"]) for c in enough
    }
    if figures:
        figures["balanced_accuracy"] = mean_of(list(figures.values()))
    if len(enough) == len(external.classes):
        figures["auroc"] = _interval(metrics["ensemble"]["auroc"])
    for key, stored in (
        ("calibration_error", metrics["ensemble"]["calibration_error"]),
        ("coverage", sets.get("coverage")),
        ("set_size", sets.get("size")),
        ("refused", ood.get("refused")),
    ):
        if stored:
            figures[key] = _interval(stored)
    for question in QUESTIONS:
        risk = metrics.get(question) or {"levels": ()}
        levels = [row for row in risk["levels"] if row["miss_rate"] == risk["chosen"]]
        for name, part in (("sensitivity", "misses"), ("specificity", "false_alarms")):
            if levels and levels[0].get(part):
                wrong = _interval(levels[0][part]["rate"])
                key = f"{question.removesuffix('_risk')}_{name}"
                figures[key] = Interval(1 - wrong.value, 1 - wrong.high, 1 - wrong.low)
    return figures


def _interval(stored: Mapping[str, float | None]) -> Interval:
    value, low, high = (
        math.nan if stored[key] is None else float(stored[key] or 0)
        for key in ("value", "low", "high")
    )
    return Interval(value, low, high)
