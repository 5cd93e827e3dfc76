"""Tables of the technical basis: what an evaluation measured, by which thresholds it is advised.

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
from skindx.diagnosis.decision_texts import tabled
from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.record_figures import UrgentRisk
from skindx.models.conformal import ALL, Share
from skindx.texts.catalogue import Digits, text, told_apart, word

Rows = list[tuple[str, ...]]
"""The rows of a table, its heading first."""


def rest_of(diagnosis: Diagnosis, sentences: Sequence[str]) -> list[str]:
    """Return the sentences whose figures stand in none of these tables."""
    shown = tabled(diagnosis)
    return [one for one in sentences if one not in shown]


def errors_table(diagnosis: Diagnosis, metrics: Metrics) -> Rows:
    """Return how often advice and names were right and wrong; [] where nothing was measured.

    None of the advice for a person whom the model knows nothing about, none of names where it
    abstains.
    """
    rows: Rows = []
    measured = None if diagnosis.beyond else diagnosis.advice_errors
    if measured:
        images = measured.missed.pictures
        rows += [
            _row(text("rate_missed"), measured.missed),
            _counts(text("rate_missed_refused"), measured.refused, images),
            _counts(text("rate_abstained"), measured.abstained, images),
            _counts(text("rate_answered_urgent"), measured.named, images),
            _row(text("rate_raised"), measured.raised),
        ]
        if measured.soon_missed and measured.soon_raised:
            rows.append(_row(text("rate_soon_missed"), measured.soon_missed))
            rows.append(_row(text("rate_soon_raised"), measured.soon_raised))
    sets = diagnosis.promise.measured if diagnosis.promise else None
    if sets and not diagnosis.abstained:
        every = sets.coverage.pictures
        if sets.refused is not None and sets.abstained is not None:
            named = max(0, every - sets.refused - sets.abstained)
            rows.append(_counts(text("rate_refused"), sets.refused, every))
            rows.append(_counts(text("rate_no_name"), sets.abstained, every))
            rows.append(_counts(text("rate_answered"), named, every))
        rows.append(_row(text("rate_named"), sets.coverage))
        rows += [_row(text("rate_named_urgent"), sets.urgent)] if sets.urgent else []
        if sets.least and not _classes(metrics):
            rows.append(_row(text("rate_named_least", name=sets.least_name), sets.least))
    top1, balanced = top1_shares(metrics)
    rows += [_row(text("rate_top1"), top1)] if top1 else []
    if balanced:
        rows.append((text("rate_balanced"), "–", *_figures(balanced)))
    split = measured.split if measured else sets.split if sets else split_of(metrics)
    columns = ("rate_images", "rate_share", "rate_interval")
    return [(text("rate_measured", split=split), *map(text, columns)), *rows] if rows else []


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
        text("cell_count", count=risk.lesions),
        text("rule_of_100", rate=round(100 * risk.miss_rate, 6)),
        text("risk", risk=Digits(risk.bound, 1)),
    )


def _row(label: str, share: Share) -> tuple[str, ...]:
    counts = {"part": round(share.value * share.pictures), "images": share.pictures}
    return (label, text("rate_counted", **counts), *_figures(share))


def _counts(label: str, part: int, images: int) -> tuple[str, ...]:
    return (label, text("rate_counted", part=part, images=images), "–", "–")


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
