"""Tables of a report: conditions, what an evaluation measured, by which thresholds it is advised.

Each rate stands once, with what was counted and its 95 % interval. What follows from the rates, or
was not measured on the same images, stays in sentences (`rest_of`).
"""

from collections.abc import Sequence
from typing import Any

from skindx.diagnosis.advice_figures import (
    Metrics,
    part_of,
    rows_of,
    share_of,
    split_of,
    top1_shares,
)
from skindx.diagnosis.checklist_advice import is_met
from skindx.diagnosis.decision_texts import tabled
from skindx.diagnosis.record import LEAST_SHOWN, Candidate, Diagnosis
from skindx.diagnosis.record_figures import MeasuredSets, UrgentRisk
from skindx.diagnosis.scope import tier_of
from skindx.models.conformal import ALL, Share
from skindx.texts.catalogue import Digits, percent, text, told_apart, word

Rows = list[tuple[str, ...]]
"""The rows of a table, its heading first."""
_WIDTHS = {3: (52, 24, 24), 4: (44, 18, 21, 16), 5: (32, 12, 18, 14, 24)}
"""Widths of the columns of conditions, by their number."""


def rest_of(diagnosis: Diagnosis, sentences: Sequence[str]) -> list[str]:
    """Return the sentences whose figures stand in none of these tables."""
    shown = tabled(diagnosis)
    return [one for one in sentences if one not in shown]


def conditions_table(
    diagnosis: Diagnosis, shown: Sequence[Candidate], *, says_named: bool
) -> tuple[Rows, tuple[int, ...]]:
    """Return conditions and the widths of their columns; an abstention has no probabilities.

    `says_named`: the last column says which of them the model names, and which decides.
    """
    columns = ("column_condition", "column_icd10", "column_urgency", "column_probability", "in_set")
    rows = [tuple(map(text, columns))]
    for one in shown:
        facts = one.icd10 or "–", tier_of(diagnosis, one), percent(one.probability)
        rows.append((one.name, *facts, _named_words(diagnosis, one)))
    count = 3 if diagnosis.abstained else 5 if says_named else 4
    return [row[:count] for row in rows], _WIDTHS[count]


def decides(diagnosis: Diagnosis, one: Candidate) -> bool:
    """Tell whether a condition decides the urgency of the advice, and no answer to a question."""
    step = diagnosis.next_step
    by_answers = step.raised_from is not None or is_met(diagnosis)
    decided = one.key == step.decided_by and step.urgency in ("urgent", "soon")
    return decided and not by_answers


def _named_words(diagnosis: Diagnosis, one: Candidate) -> str:
    """Return whether the model names a condition, and why one that it does not is listed."""
    if decides(diagnosis, one):
        return text("in_set_decides" if one.in_set else "record_also_decides")
    if one.in_set:
        return text("in_set_yes")
    likely = one in diagnosis.outside and one.probability >= LEAST_SHOWN
    return text("record_also" if likely else "record_not_named")


def advice_table(diagnosis: Diagnosis) -> Rows:
    """Return how often the advice was wrong; [] where nothing was measured.

    None for a person whom the model knows nothing about. Of an answer against the check of modality
    those of images that it alone refused.
    """
    if said := diagnosis.modality_said:
        shares = (
            ("rate_said_missed", said.called and said.called.rest),
            ("rate_said_raised", said.raised),
        )
        counted = [_row(key, share) for key, share in shares if share]
        return [_counted_on(said.split), *counted] if counted else []
    measured = None if diagnosis.beyond else diagnosis.advice_errors
    if measured is None:
        return []
    rows = [_row("rate_missed", measured.missed), _row("rate_raised", measured.raised)]
    if measured.soon_missed and measured.soon_raised:
        rows.append(_row("rate_soon_missed", measured.soon_missed))
        rows.append(_row("rate_soon_raised", measured.soon_raised))
    return [_counted_on(measured.split), *rows]


def outcomes_table(diagnosis: Diagnosis) -> Rows:
    """Return how many images were refused, and for how many the model named conditions."""
    measured = None if diagnosis.beyond else diagnosis.advice_errors
    sets = _sets_of(diagnosis)
    columns: list[tuple[str, tuple[int, int, int], int]] = []
    if measured:
        parts = measured.refused, measured.abstained, measured.named
        columns.append(("outcome_urgent", parts, measured.missed.pictures))
    if sets and sets.refused is not None and sets.abstained is not None:
        every = sets.coverage.pictures
        parts = sets.refused, sets.abstained, max(0, every - sets.refused - sets.abstained)
        columns.append(("outcome_all", parts, every))
    if not columns:
        return []
    split = measured.split if measured else sets.split if sets else ""
    head = (text("rate_measured", split=split), *(text(key) for key, _, _ in columns))
    keys = ("outcome_refused", "outcome_no_name", "outcome_named")
    rows = [
        (text(key), *(_counts(parts[place], images) for _, parts, images in columns))
        for place, key in enumerate(keys)
    ]
    return [head, *rows]


def names_table(diagnosis: Diagnosis, metrics: Metrics) -> Rows:
    """Return how often the true condition was among those named, and first.

    Of an abstention only the latter.
    """
    rows: Rows = []
    sets = _sets_of(diagnosis)
    if sets:
        rows.append(_row("rate_named", sets.coverage))
        rows += [_row("rate_named_urgent", sets.urgent)] if sets.urgent else []
        if sets.least and not _classes(metrics):
            rows.append(_row("rate_named_least", sets.least, name=sets.least_name))
    top1, balanced = top1_shares(metrics)
    rows += [_row("rate_top1", top1)] if top1 else []
    if balanced:
        rows.append((text("rate_balanced"), "–", _with_interval(balanced)))
    return [_counted_on(sets.split if sets else split_of(metrics)), *rows] if rows else []


def _sets_of(diagnosis: Diagnosis) -> MeasuredSets | None:
    promise = None if diagnosis.abstained else diagnosis.promise
    return promise.measured if promise else None


def _counted_on(split: str) -> tuple[str, ...]:
    return (text("rate_measured", split=split), text("rate_images"), text("rate_share"))


def classes_table(diagnosis: Diagnosis, metrics: Metrics) -> Rows:
    """Return how often the images of each condition were recognised; [] where it is not known.

    Of an abstention none: its photo may be unlike them.
    """
    found = _classes(metrics)
    if not found or diagnosis.abstained:
        return []
    sets = {row.get("name"): row for row in rows_of(part_of(metrics, "sets"), "by_class")}
    rows: Rows = []
    for row in found:
        named = sets.get(row.get("name"), {})
        shares = (named.get("coverage"), named.get("n")), (row.get("sensitivity"), row.get("n"))
        cells = [_with_interval(share_of(*one)) for one in shares]
        images = text("cell_count", count=row["n"])
        rows.append((word(str(row.get("name"))), images, *cells))
    split = split_of(metrics)
    columns = (text("class_named"), text("class_first"))
    return [(text("class_images", split=split), text("rate_images"), *columns), *rows]


def _classes(metrics: Metrics) -> list[dict[str, Any]]:
    rows = rows_of(metrics or {}, "classes")
    return [row for row in rows if share_of(row.get("sensitivity"), row.get("n"))]


def thresholds_table(diagnosis: Diagnosis) -> Rows:
    """Return the thresholds of the advice and how they were fitted; [] without, or if unsure."""
    urgent, soon = ("rule_urgent", "rule_urgent_group"), ("rule_soon", "rule_soon_group")
    risks = ((urgent, diagnosis.urgent_risk), (soon, diagnosis.soon_risk))
    rows = [_fitted(keys, one) for keys, one in risks if one and not diagnosis.abstained]
    columns = ("rule", "rule_from", "rule_lesions", "rule_rate", "rule_bound")
    return [tuple(map(text, columns)), *rows] if rows else []


def _fitted(keys: tuple[str, str], risk: UrgentRisk) -> tuple[str, ...]:
    _, least = told_apart(risk.risk, risk.threshold)
    of_all, of_group = keys
    named = text(of_all)
    if risk.group != ALL:
        named = text(of_group, group=risk.group.replace("_", " "))
    return (
        named,
        text("risk", risk=least),
        text("rule_on", n=risk.lesions),
        text("rule_of_100", rate=round(100 * risk.miss_rate, 6)),
        text("risk", risk=Digits(risk.bound, 1)),
    )


def _row(key: str, share: Share, **names: str) -> tuple[str, ...]:
    counted = _counts(round(share.value * share.pictures), share.pictures)
    return (text(key, **names), counted, _with_interval(share))


def _counts(part: int, images: int) -> str:
    return text("rate_counted", part=part, images=images)


def _figures(share: Share) -> tuple[str, str]:
    """Write a share and its interval with digits that tell the interval's ends apart."""
    ends = 100 * share.low, 100 * share.high
    digits = next((n for n in (1, 2, 3) if f"{ends[0]:.{n}f}" != f"{ends[1]:.{n}f}"), 4)
    value, low, high = (Digits(one, digits) for one in (share.value, share.low, share.high))
    return text("risk", risk=value), text("rate_ends", low=low, high=high)


def _with_interval(share: Share | None) -> str:
    if share is None:
        return "–"
    value, ends = _figures(share)
    return f"{value} ({ends})"
