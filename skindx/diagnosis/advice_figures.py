"""Figures of an answer: its risk, and those of its bundle's evaluation, which `answer_texts` says.

What is said of the whole evaluation, whatever the answer, and of the risk, is said here.

They follow the layout of `skindx evaluate`. A figure that is missing or damaged is left out, as in
evaluations of older versions.
"""

import math
from typing import Any

from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.record_figures import (
    AdviceErrors,
    Confused,
    MeasuredSets,
    ModalitySaid,
    PredictiveValue,
    UrgentRisk,
)
from skindx.imaging.photo_gates import Kind
from skindx.metrics import proportion_interval
from skindx.models.conformal import Share
from skindx.texts.catalogue import Digits, joined, speaking, text, told_apart

Metrics = dict[str, Any] | None

OFTEN = 0.05
"""An urgent condition is confused with another that gets this share of its images or more."""
STATED_PREVALENCE = 0.01
"""Share of urgent lesions that predictive values hold for where the operator gave none: less than
in a test set, which is taken from what clinics removed."""


def advice_errors(
    metrics: Metrics,
    miss_rate: float | None,
    prevalence: float | None = None,
    soon_miss_rate: float | None = None,
) -> AdviceErrors | None:
    """Return both errors of the advice as it was given, refused images and abstentions counted.

    The threshold's own errors are others: an abstention can stay urgent below it, and a refused
    photo gets no advice. `miss_rate` is that of the threshold in use, None without one; an
    evaluation with another threshold says nothing of it. `prevalence` is what the operator gave.
    """
    if not _is_measured(part_of(metrics, "urgent_risk"), miss_rate):
        return None
    rows = {str(row.get("name")): row for row in rows_of(metrics or {}, "served")}
    urgent, other = rows.get("urgent classes", {}), rows.get("other classes", {})
    called = share_of(part_of(urgent, "rates").get("urgent"), urgent.get("n"))
    raised = share_of(part_of(other, "rates").get("urgent"), other.get("n"))
    if called is None or raised is None:
        return None
    missed = called.rest
    of_test = called.pictures / (called.pictures + raised.pictures)
    stated = STATED_PREVALENCE if prevalence is None else prevalence
    soon_missed, soon_raised = _soon_errors(part_of(metrics, "soon_risk"), soon_miss_rate)
    classes = rows_of(metrics or {}, "classes")
    shown = [one for one in classes if one.get("urgency") == "urgent" and _counted(one.get("n"))]
    return AdviceErrors(
        split=split_of(metrics),
        only=str(shown[0].get("name")) if len(shown) == 1 else "",
        soon_missed=soon_missed,
        soon_raised=soon_raised,
        missed=missed,
        raised=raised,
        refused=_counted(part_of(urgent, "steps").get("none")),
        abstained=_counted(urgent.get("abstained")),
        values=tuple(_predictive(missed.value, raised.value, at) for at in (stated, of_test)),
    )


def refused_urgent(metrics: Metrics) -> str:
    """Return how many urgent images the model refused, in a sentence; "" where nobody counted."""
    rows = {str(row.get("name")): row for row in rows_of(metrics or {}, "served")}
    urgent = rows.get("urgent classes", {})
    share = share_of(part_of(urgent, "rates").get("none"), urgent.get("n"))
    if share is None:
        return ""
    ends = {"low": Digits(share.low, 1), "high": Digits(share.high, 1)}
    return text("refused_urgent", split=split_of(metrics), refused=share.value, **ends)


def modality_said(kind: Kind, metrics: Metrics, miss_rate: float | None) -> ModalitySaid:
    """Return the errors of answers to photos that the check of modality alone refuses.

    An evaluation with another threshold, or of an older version, says nothing of them.
    """
    if not _is_measured(part_of(metrics, "urgent_risk"), miss_rate):
        return ModalitySaid(kind=kind)
    rows = {str(row.get("name")): row for row in rows_of(metrics or {}, "served")}
    called, raised = (
        share_of(part_of(row, "rates").get("urgent"), row.get("n"))
        for name in ("urgent classes", "other classes")
        for row in [rows.get(f"{name} (modality alone)", {})]
    )
    return ModalitySaid(kind=kind, split=split_of(metrics), called=called, raised=raised)


def _is_measured(question: dict[str, Any], miss_rate: float | None) -> bool:
    """Whether an evaluation measured the threshold in use; None: it and the bundle have none."""
    chosen = question.get("chosen")
    if miss_rate is None or chosen is None:
        return miss_rate is chosen
    return isinstance(chosen, float) and math.isclose(chosen, miss_rate)


def _soon_errors(
    question: dict[str, Any], miss_rate: float | None
) -> tuple[Share, Share] | tuple[None, None]:
    """Return how often the thresholds miss urgent and soon conditions, and send others on."""
    rows = sorted(rows_of(question, "steps"), key=lambda row: row.get("name") == "other classes")
    if len(rows) != 2 or miss_rate is None or not _is_measured(question, miss_rate):
        return None, None
    missed, raised = _sum(rows[0], "unknown", "routine"), _sum(rows[1], "urgent", "soon")
    return (missed, raised) if missed and raised else (None, None)


def _sum(row: dict[str, Any], *steps: str) -> Share | None:
    """Return the share of images with one of some steps, with an interval that is wide enough."""
    found = [share_of(part_of(row, "rates").get(step), row.get("n")) for step in steps]
    shares = [one for one in found if one]
    if len(shares) != len(steps):
        return None
    value, low, high = (
        min(sum(getattr(one, name) for one in shares), 1.0) for name in ("value", "low", "high")
    )
    return Share(value=value, low=low, high=high, pictures=shares[0].pictures)


def _predictive(missed: float, raised: float, prevalence: float) -> PredictiveValue:
    """Return the predictive values by Bayes' rule."""
    right, wrong = prevalence * (1 - missed), (1 - prevalence) * raised
    rest_right, rest_wrong = (1 - prevalence) * (1 - raised), prevalence * missed
    return PredictiveValue(
        prevalence=prevalence,
        ppv=right / (right + wrong) if right + wrong else None,
        npv=rest_right / (rest_right + rest_wrong) if rest_right + rest_wrong else None,
    )


def _counted(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def measured_sets(metrics: Metrics) -> MeasuredSets | None:
    """Return what the evaluation measured of the sets; None where it measured nothing."""
    sets = part_of(metrics, "sets")
    coverage = share_of(sets.get("coverage"), metrics.get("pictures") if metrics else None)
    if coverage is None:
        return None
    groups, classes = rows_of(sets, "by_group"), rows_of(sets, "by_class")
    covered = [
        (str(row.get("name")), share)
        for row in classes
        if (share := share_of(row.get("coverage"), row.get("n")))
    ]
    least_name, least = min(covered, key=lambda row: row[1].value, default=("", None))
    urgent = next((row for row in groups if row.get("name") == "urgent classes"), {})
    served = rows_of(metrics or {}, "served")
    every = next((row for row in served if row.get("name") == "all"), None)
    missed, raised = part_of(sets, "urgent_missed"), part_of(sets, "false_alarms")
    return MeasuredSets(
        split=split_of(metrics),
        coverage=coverage,
        urgent=share_of(urgent.get("coverage"), urgent.get("n")),
        least_name=least_name,
        least=least,
        refused=_counted(part_of(every, "steps").get("none")) if every else None,
        abstained=_counted(every.get("abstained")) if every else None,
        urgent_missed=share_of(missed.get("rate"), missed.get("n")),
        urgent_raised=share_of(raised.get("rate"), raised.get("n")),
    )


def confused_with(metrics: Metrics, key: str) -> Confused | None:
    """Return how often images of urgent conditions got this condition as their likeliest.

    Of a condition that is neither urgent nor soon the most frequent one counts even below 5 %.
    None: it is urgent itself, was not measured, or it is soon and got fewer than 5 % of each.
    """
    rows, table = rows_of(metrics or {}, "classes"), (metrics or {}).get("confusion")
    keys = [row.get("key") for row in rows]
    if key not in keys or not isinstance(table, list) or len(table) != len(rows):
        return None
    place, found = keys.index(key), []
    for row, counts in zip(rows, table, strict=True):
        is_row = isinstance(counts, list) and len(counts) == len(rows)
        if row.get("urgency") != "urgent" or row["key"] == key or not is_row:
            continue
        called, images = _counted(counts[place]), _counted(row.get("n"))
        if images:
            found.append((called, images, str(row.get("name")), _counted(row.get("groups"))))
    urgency = rows[place].get("urgency")
    often = [one for one in found if one[0] and one[0] >= OFTEN * one[1]]
    if not often and urgency != "soon":
        often = [max(found, key=lambda one: one[0] / one[1])] if found else []
    if not often or urgency == "urgent":
        return None
    called, images = sum(one[0] for one in often), sum(one[1] for one in often)
    trials = sum(one[3] or one[1] for one in often)
    return Confused(
        split=split_of(metrics),
        names=tuple(name for *_, name, _ in sorted(often, key=lambda one: -one[0])),
        called=called,
        images=images,
        most=proportion_interval(called / images, trials).high,
    )


def right_at(metrics: Metrics, probability: float) -> Share | None:
    """Return how often the likeliest class was right where it had about this probability.

    Of the evaluation's bin of probabilities; None where it measured no such share.
    """
    for one in rows_of(metrics or {}, "reliability"):
        ends = [end for end in (one.get("low"), one.get("high")) if isinstance(end, float | int)]
        if len(ends) == 2 and ends[0] < max(probability, 1e-9) <= ends[1]:
            return share_of(one.get("right"), one.get("n"))
    return None


def measured(metrics: Metrics) -> str:
    """Return what the bundle's evaluation measured, in sentences; empty when it says nothing."""
    top1, balanced = top1_shares(metrics)
    return joined(
        text("measured_top1", split=split_of(metrics), share=top1) if top1 else "",
        text("measured_balanced", share=balanced) if balanced else "",
        *measured_risks(metrics),
    )


def top1_shares(metrics: Metrics) -> tuple[Share | None, Share | None]:
    """Return how often the likeliest class was right, of all images and on average of classes."""
    ensemble, images = part_of(metrics, "ensemble"), metrics.get("pictures") if metrics else None
    top1, balanced = (share_of(ensemble.get(key), images) for key in ("top1", "balanced_accuracy"))
    return top1, balanced


def measured_risks(metrics: Metrics) -> list[str]:
    """Return how far probabilities and risks agreed with what was observed, in sentences."""
    off = part_of(part_of(metrics, "ensemble"), "calibration_error").get("value")
    said = [text("measured_off", value=Digits(off, 1))] if isinstance(off, float) else []
    observed = _observed(metrics)
    return [*said, *([observed] if observed else [])]


def _observed(metrics: Metrics) -> str:
    """Return how common urgent conditions were against their probabilities, if it was measured."""
    rows = {str(row.get("key")): row for row in rows_of(metrics or {}, "questions")}
    urgent: dict[str, Any] = rows.get("urgent_risk", {})
    ratio = part_of(urgent, "observed_over_expected")
    figures = {key: ratio.get(key) for key in ("value", "low", "high")}
    if not all(isinstance(figure, float | int) for figure in figures.values()):
        return ""
    band = part_of(urgent, "band")
    observed, said = share_of(band.get("observed"), band.get("n")), band.get("said")
    where = ""
    ends = {"low": band.get("low"), "high": band.get("high")}
    if observed and all(isinstance(one, float) for one in (said, *ends.values())):
        where = text("measured_band", said=said, share=observed, **ends)
    about_one = ratio["low"] <= 1 <= ratio["high"] and abs(ratio["value"] - 1) < 0.1
    key = "measured_ratio_agrees" if about_one else "measured_ratio"
    return joined(text(key, **figures), where)


def share_of(interval: Any, pictures: Any) -> Share | None:
    """Return a measured share; None for what is none."""
    if not isinstance(interval, dict) or not isinstance(pictures, int) or pictures < 1:
        return None
    value, low, high = (interval.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, float | int) or not 0 <= value <= 1:  # NaN is in no range
        return None
    ends = [end if isinstance(end, float | int) and 0 <= end <= 1 else value for end in (low, high)]
    return Share(value=value, low=ends[0], high=ends[1], pictures=pictures).with_width()


def split_of(metrics: Metrics) -> str:
    """Return the split that was evaluated."""
    split = part_of(metrics, "origin").get("split")
    return split if isinstance(split, str) else "test"


def rows_of(whole: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of mappings of the evaluation; empty for what is none."""
    rows = whole.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def part_of(whole: Metrics, key: str) -> dict[str, Any]:
    """Return a mapping of the evaluation; empty for what is none."""
    part = whole.get(key) if whole else None
    return part if isinstance(part, dict) else {}


def photo_risks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the risk by each of several photos alone, in sentences; "" for each without one."""
    risk = said_risk(diagnosis)
    if not (risk and risk.by_photo) or (diagnosis.abstained and not risk.is_reached):
        return ("",) * len(diagnosis.photos)
    key = "photo_risk_soon" if soon_decides(diagnosis) else "photo_risk"
    shown = (told_apart(one, risk.threshold)[0] for one in risk.by_photo)
    return tuple(text(key, risk=one) for one in shown)


def said_risk(diagnosis: Diagnosis) -> UrgentRisk | None:
    """Return the risk that the reason of the next step gives, or else that of urgent conditions."""
    return diagnosis.soon_risk if soon_decides(diagnosis) else diagnosis.urgent_risk


def soon_decides(diagnosis: Diagnosis) -> bool:
    """Tell whether the risk of urgent and soon conditions decided the model's next step."""
    soon, step = diagnosis.soon_risk, diagnosis.next_step
    if soon is None:
        return False
    shown, least = told_apart(soon.risk, soon.threshold)
    with speaking(diagnosis.language):
        return text("because_soon", risk=shown, least=least) in joined(step.because, *step.more)


def combined(diagnosis: Diagnosis) -> str:
    """Return why the risk is not that of the table, of several photos; "" where it is."""
    risk = said_risk(diagnosis)
    if len(diagnosis.photos) == 1 or not (risk and risk.by_photo):
        return ""
    if not diagnosis.abstained:
        return joined(_highest(risk), text("photos_mean"))
    reached = [n for n, one in enumerate(risk.by_photo, 1) if one >= risk.threshold]
    if not reached or diagnosis.beyond:
        return _highest(risk) if reached else ""
    key = "photos_soon" if soon_decides(diagnosis) else "photos_urgent"
    alone = text(key, n=len(reached), numbers=[str(n) for n in reached])
    return joined(alone, _highest(risk) if len(reached) > 1 else "")


def _highest(risk: UrgentRisk) -> str:
    """Return which photo has the risk, as the caption of the photo says it."""
    shown, _ = told_apart(risk.risk, risk.threshold)
    return text("photos_risk", risk=shown, number=1 + risk.by_photo.index(max(risk.by_photo)))


def soon_sum(diagnosis: Diagnosis) -> list[str]:
    """Return what the risk is that made an answer soon, in which urgent ones are counted."""
    soon = diagnosis.soon_risk
    if soon is None or not soon_decides(diagnosis):
        return []
    shown, least = told_apart(soon.risk, soon.threshold)
    return [text("decided_soon", risk=shown, least=least)]


def seen_whole(diagnosis: Diagnosis) -> str:
    """Return how many photos the networks saw wholly; "" for none."""
    count = sum(bool(one.square and not one.cut_out) for one in diagnosis.photos)
    return text("seen_whole", n=count) if count else ""
