"""How an answer came about and how often its advice errs, in sentences."""

from typing import Any

from skindx.core.seven_points import answered
from skindx.diagnosis.advice_figures import (
    combined,
    soon_sum,
)
from skindx.diagnosis.checklist_advice import (
    checklist_words,
    is_met,
)
from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.record_figures import AdviceErrors, ModalitySaid, Promise, UrgentRisk
from skindx.models.conformal import ALL, Share
from skindx.texts.catalogue import Digits, text, told_apart

FEW = 5
"""A share of fewer errors would claim too much: the count and its bound stand instead."""


def errors(diagnosis: Diagnosis) -> list[str]:
    """Return both errors of the advice in short, and which photos it is for.

    Nobody measured them with the questions.
    """
    dermoscopic = diagnosis.source.modality == "dermoscopic"
    step = diagnosis.next_step
    # An advice without urgency says it; an abstention shows no probabilities. What a bundle says it
    # learned from stands beside the advice.
    met = diagnosis.patient.model_fields_set and is_met(diagnosis)
    examine = [] if step.urgency == "unknown" and not met else [text("assessed")]
    told = diagnosis.learned_images and not diagnosis.modality_said
    shown = [] if diagnosis.abstained or told else [text("assessed_dermoscopic")]
    assessed = [*examine, *shown] if dermoscopic else []
    if diagnosis.beyond:
        return [text("errors_beyond", names=diagnosis.beyond), *assessed]
    if diagnosis.modality_said:
        return [*_errors_said(diagnosis.modality_said), *assessed]
    asked = step.raised_from is not None
    said = errors_of(diagnosis.advice_errors, unlike=bool(diagnosis.abstained))
    if step.urgency == "soon" and (soon := _soon(diagnosis.advice_errors)):
        said[:2] = soon  # the pair that fits the advice; that of urgent is folded
    return [*(said[:2] if asked else said), *assessed]


def _errors_said(said: ModalitySaid) -> list[str]:
    """Return whose errors are known, and both errors for photos that the check alone refused."""
    whose = text("errors_said")
    if not said.called and not said.raised:
        return [whose, text("errors_said_unmeasured")]
    sentences = [whose]
    if one := said.called:
        sentences.append(text("errors_said_urgent", split=said.split, **_of_share(one)))
    if one := said.raised:
        sentences.append(text("errors_said_others", **_of_share(one)))
    return sentences


def _of_share(share: Share) -> dict[str, Any]:
    counts = {"called": round(share.value * share.pictures), "images": share.pictures}
    return counts | {"low": Digits(share.low, 1), "high": Digits(share.high, 1)}


def _soon(measured: AdviceErrors | None) -> list[str]:
    """Return both errors of "soon" in short, where an evaluation measured them."""
    missed, raised = (measured.soon_missed, measured.soon_raised) if measured else (None, None)
    if not (measured and missed and raised):
        return []
    return [
        text("errors_soon", missed=missed.value),
        text("errors_soon_raised", raised=raised.value),
    ]


def errors_of(measured: AdviceErrors | None, *, unlike: bool = False) -> list[str]:
    """Return both errors in short, of the model without answers to questions.

    `unlike`: the photo may be unlike those of the evaluation.
    """
    if measured is None:
        return [text("errors_unmeasured")]
    last = text("errors_unlike" if unlike else "errors_elsewhere")
    return [_missed(measured), _raised(measured), last]


def _missed(measured: AdviceErrors) -> str:
    share, split = measured.missed, measured.split
    if (count := round(share.value * share.pictures)) < FEW:
        counts = {"missed": count, "images": share.pictures, "most": share.high}
        return text("errors_missed_few", split=split, **counts)
    if measured.only:
        return text("errors_missed_only", missed=share.value, split=split, only=measured.only)
    return text("errors_missed", missed=share.value, split=split)


def _raised(measured: AdviceErrors) -> str:
    share = measured.raised
    if (count := round(share.value * share.pictures)) < FEW:
        counts = {"raised": count, "images": share.pictures, "most": share.high}
        return text("errors_raised_few", **counts)
    return text("errors_raised", raised=share.value)


def decided_parts(diagnosis: Diagnosis) -> dict[str, list[str]]:
    """Return how next step and set came about, and their figures, by the keys of their headings."""
    how, photos = how_combined(diagnosis), combined(diagnosis)
    whose = text("assessed_dermoscopic") if diagnosis.source.modality == "dermoscopic" else ""
    raised = diagnosis.next_step.raised_from and not diagnosis.beyond
    more = diagnosis.next_step.more
    parts = {
        "decided_photo": [*soon_sum(diagnosis), *more, *([photos] if photos else [])],
        "decided_checklist": checklist_words(diagnosis) if answered(diagnosis.patient) else [],
        "decided_advice": [
            *(_advised(diagnosis.advice_errors) if not diagnosis.beyond else ()),
            *(errors_of(diagnosis.advice_errors)[2:] if raised else ()),
            *_thresholds(diagnosis),
        ],
        "decided_list": _sets(diagnosis.promise, diagnosis) if diagnosis.promise else [],
        "decided_holds": [sentence for sentence in (how, whose, diagnosis.mix) if sentence],
    }
    return {key: said for key, said in parts.items() if said}


def decided(diagnosis: Diagnosis) -> list[str]:
    """Return the same without headings."""
    return [sentence for said in decided_parts(diagnosis).values() for sentence in said]


def tabled(diagnosis: Diagnosis) -> set[str]:
    """Return those of the same whose figures stand in tables of the printed report."""
    measured, promise = diagnosis.advice_errors, diagnosis.promise
    risks = ((diagnosis.urgent_risk, "threshold_fitted"), (diagnosis.soon_risk, "threshold_soon"))
    said = [_fitted(one, key) for one, key in risks if one and not diagnosis.abstained]
    if diagnosis.urgent_risk:
        said += [text("threshold_confidence", bound=Digits(diagnosis.urgent_risk.bound, 1))]
    said += [*_without_refusals(measured)]
    said += [one for one in _advised(measured) if one not in _worth(measured)]
    if promise and promise.measured:
        sets = _sets(promise, diagnosis)
        fitted = _sets(promise.model_copy(update={"measured": None}), diagnosis)
        uncounted = text("set_not_counted")
        said += [one for one in sets if one not in fitted and one != uncounted]
    return set(said)


def _advised(measured: AdviceErrors | None) -> list[str]:
    if measured is None:
        return []
    images, split = measured.missed.pictures, measured.split
    missed = round(measured.missed.value * images)
    said = [
        text("advised_missed", share=measured.missed, split=split),
        text("advised_refused", refused=measured.refused, missed=missed),
        text(
            "advised_abstained",
            named=measured.named,
            images=images,
            split=split,
            abstained=measured.abstained,
        ),
        text("advised_raised", share=measured.raised, split=split),
    ]
    if measured.soon_missed and measured.soon_raised:
        said.append(text("advised_soon_missed", share=measured.soon_missed, split=split))
        said.append(text("advised_soon_raised", share=measured.soon_raised, split=split))
    return [*said, *_worth(measured)]


def _worth(measured: AdviceErrors | None) -> list[str]:
    """Return the predictive values of the advice."""
    return [
        text("predictive", prevalence=one.prevalence, ppv=one.ppv, missed=1 - one.npv)
        for one in (measured.values if measured else ())
        if one.ppv is not None and one.npv is not None
    ]


def _thresholds(diagnosis: Diagnosis) -> list[str]:
    """Return how the thresholds were fitted; of an abstention that its photo may be unlike."""
    risk, soon = diagnosis.urgent_risk, diagnosis.soon_risk
    if diagnosis.abstained:
        return [text("threshold_unlike")] if risk else []
    said = []
    if risk:
        said += [_fitted(risk, "threshold_fitted")]
        said += [text("threshold_confidence", bound=Digits(risk.bound, 1))]
        said += _without_refusals(diagnosis.advice_errors)
    elif diagnosis.no_urgent_risk:
        said += [diagnosis.no_urgent_risk]
    if soon:
        said += [_fitted(soon, "threshold_soon")]
    # What was counted of the advice, or of answers against the check of modality, says more.
    if diagnosis.advice_errors is None and diagnosis.modality_said is None:
        for one, key in ((risk, "threshold_sent_on"), (soon, "threshold_sent_on_soon")):
            said += [text(key, share=one.sent_on)] if one and one.sent_on else []
    return said


def _without_refusals(measured: AdviceErrors | None) -> list[str]:
    """Return how many the advice missed of images that were not refused, as a bound counts them."""
    if measured is None or not measured.refused:
        return []
    missed = round(measured.missed.value * measured.missed.pictures) - measured.refused
    counts = {"missed": missed, "images": measured.missed.pictures - measured.refused}
    return [text("threshold_refusals", split=measured.split, **counts)]


def _fitted(risk: UrgentRisk, key: str) -> str:
    _, least = told_apart(risk.risk, risk.threshold)
    values = {"lesions": risk.lesions, "rate": round(100 * risk.miss_rate, 6), "least": least}
    if risk.group != ALL:
        return text(f"{key}_group", group=risk.group, **values)
    return text(key, **values)


def _sets(promise: Promise, diagnosis: Diagnosis) -> list[str]:
    if diagnosis.abstained:
        return []
    said = []
    if promise.group == ALL:
        said += [text("set_images", n=promise.pictures)]
    else:
        group = promise.group.replace("_", " ")
        said += [text("set_images_group", n=promise.pictures, group=group)]
    if promise.urgent_level is not None and promise.urgent_apart:
        said += [text("set_urgent_level", level=promise.urgent_level)]
        if named_below(diagnosis):
            said += [text("set_urgent_apart")]
    if measured := promise.measured:
        said += [text("set_share", split=measured.split, share=measured.coverage)]
        said += [text("set_share_urgent", share=measured.urgent)] if measured.urgent else []
        if measured.least:
            said += [text("set_share_least", name=measured.least_name, share=measured.least)]
        said += [text("set_not_counted")]
        if measured.refused is not None and measured.abstained is not None:
            counts = {"refused": measured.refused, "abstained": measured.abstained}
            said += [text("set_served", images=measured.coverage.pictures, **counts)]
    elif diagnosis.knows_urgent and diagnosis.advice_errors is None:
        missed, raised = promise.urgent_missed, promise.urgent_raised
        said += [text("set_missed", share=missed)] if missed else []
        said += [text("set_raised", share=raised)] if raised else []
    return said


def named_below(diagnosis: Diagnosis) -> bool:
    """Tell whether an urgent condition is named although a likelier one is not."""
    inside = [one.in_set for one in diagnosis.candidates]  # likeliest first
    apart = diagnosis.promise is not None and diagnosis.promise.urgent_apart
    return apart and inside != sorted(inside, reverse=True)


def how_combined(diagnosis: Diagnosis) -> str:
    """Return what was done to the networks' mean; empty for one network, or where nothing was."""
    if len(diagnosis.votes) < 2 or abs(diagnosis.temperature - 1) < 0.005:
        return ""
    images = "local" if diagnosis.source.adapted else "validation"
    key = "combined_sharper" if diagnosis.temperature < 1 else "combined_softer"
    return text(key, temperature=diagnosis.temperature, images=images)
