"""An answer in sentences, in the order in which every output says them.

Warnings, next step, one reason, both errors of the advice, the set, the photos: these are few
words. `decided`, `unknown` and `basis` are what a page folds and a report prints.
"""

from typing import Any

from skindx.diagnosis.advice_figures import Metrics, part_of, right_at, rows_of, share_of, split_of
from skindx.diagnosis.record import AdviceErrors, Diagnosis, Promise, UrgentRisk
from skindx.diagnosis.scope import lacks
from skindx.models.conformal import ALL
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import Digits, joined, text

TIERS: dict[Urgency, str] = {
    "urgent": "tier_urgent",
    "soon": "tier_soon",
    "routine": "tier_routine",
    "unknown": "tier_unknown",
}
"""Keys of the names of the urgencies."""
FEW = 5
"""Below so many errors a share would claim too much: the count and its bound stand instead."""


def warnings(diagnosis: Diagnosis) -> list[str]:
    """Return what a reader must know before the advice."""
    useful = [text("not_useful_yet"), *diagnosis.not_useful] if diagnosis.not_useful else []
    synthetic = [one] if (one := synthetic_warning(diagnosis)) else []
    urgent = [] if diagnosis.knows_urgent else [text("no_urgent_classes")]
    return [*useful, *synthetic, *urgent]


def synthetic_warning(diagnosis: Diagnosis) -> str:
    """Return what synthetic images mean for an answer; "" where the model learned from photos."""
    source = diagnosis.source
    return source.learned_from.removeprefix(source.use.sentence if source.use else "").strip()


def unsure(diagnosis: Diagnosis) -> str:
    """Return that the model abstains and why; "" where it names conditions."""
    return joined(text("does_not_know"), diagnosis.abstained) if diagnosis.abstained else ""


def errors(diagnosis: Diagnosis) -> list[str]:
    """Return both errors of the advice in short."""
    return errors_of(diagnosis.advice_errors, unlike=bool(diagnosis.abstained))


def errors_of(measured: AdviceErrors | None, *, unlike: bool = False) -> list[str]:
    """Return both errors in short; `unlike`: the photo may be unlike those of the evaluation."""
    if measured is None:
        return [text("errors_unmeasured")]
    last = text("errors_elsewhere")
    if unlike:
        last = text("errors_unlike", split=measured.split)
    return [_missed(measured), _raised(measured), last]


def _missed(measured: AdviceErrors) -> str:
    share, split = measured.missed, measured.split
    if (count := round(share.value * share.pictures)) < FEW:
        counts = {"missed": count, "images": share.pictures, "most": share.high}
        return text("errors_missed_few", split=split, **counts)
    return text("errors_missed", missed=share.value, split=split)


def _raised(measured: AdviceErrors) -> str:
    share = measured.raised
    if (count := round(share.value * share.pictures)) < FEW:
        counts = {"raised": count, "images": share.pictures, "most": share.high}
        return text("errors_raised_few", **counts)
    return text("errors_raised", raised=share.value)


def set_sentence(diagnosis: Diagnosis) -> str:
    """Return how often such a set holds the true condition; "" where the model abstains.

    A share of all photos says nothing of one that it cannot judge.
    """
    promise = diagnosis.promise
    if diagnosis.abstained:
        return ""
    if promise is None:
        return joined(diagnosis.no_promise or text("set_none"), text("set_unknown"))
    if measured := promise.measured:
        return text("set_held", covered=measured.coverage.value, split=measured.split)
    return text("set_fitted", level=promise.level)


def decided(diagnosis: Diagnosis) -> list[str]:
    """Return how next step and set came about, and their figures with intervals."""
    return [
        *diagnosis.next_step.more,
        *_advised(diagnosis.advice_errors),
        *_thresholds(diagnosis),
        *(_sets(diagnosis.promise, diagnosis) if diagnosis.promise else ()),
        *((how,) if (how := how_combined(diagnosis)) else ()),
        *((diagnosis.mix,) if diagnosis.mix else ()),
    ]


def _advised(measured: AdviceErrors | None) -> list[str]:
    if measured is None:
        return []
    counts = {"refused": measured.refused, "abstained": measured.abstained}
    said = [
        text("advised_missed", share=measured.missed),
        text("advised_raised", share=measured.raised),
        text("advised_refused", images=measured.missed.pictures, **counts),
    ]
    for one in measured.values:
        if one.ppv is not None and one.npv is not None:
            said.append(text("predictive", prevalence=one.prevalence, ppv=one.ppv))
            said.append(text("predictive_rest", npv=one.npv))
    return said


def _thresholds(diagnosis: Diagnosis) -> list[str]:
    """Return how the thresholds were fitted; of an abstention that its photo may be unlike."""
    risk, soon = diagnosis.urgent_risk, diagnosis.soon_risk
    if diagnosis.abstained:
        return [text("threshold_unlike")] if risk else []
    said = []
    if risk:
        said += [_fitted(risk, "threshold_fitted")]
        bound = Digits(risk.bound, 1)
        said += [text("threshold_confidence", confidence=risk.confidence, bound=bound)]
    elif diagnosis.no_urgent_risk:
        said += [diagnosis.no_urgent_risk]
    if soon:
        said += [_fitted(soon, "threshold_soon")]
    if diagnosis.advice_errors is None:  # what was counted of the advice says more
        for one, key in ((risk, "threshold_sent_on"), (soon, "threshold_sent_on_soon")):
            said += [text(key, share=one.sent_on)] if one and one.sent_on else []
    if (risk or soon) and len(diagnosis.photos) > 1:
        said += [text("photos_combined", photos=len(diagnosis.photos))]
    return said


def _fitted(risk: UrgentRisk, key: str) -> str:
    values = {"lesions": risk.lesions, "rate": round(100 * risk.miss_rate, 6)}
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
    inside = [one.in_set for one in diagnosis.candidates]  # likeliest first
    if promise.urgent_level is not None and promise.urgent_apart:
        said += [text("set_urgent_level", level=promise.urgent_level)]
        if inside != sorted(inside, reverse=True):
            said += [text("set_urgent_apart")]
    if measured := promise.measured:
        said += [text("set_share", split=measured.split, share=measured.coverage)]
        said += [text("set_share_urgent", share=measured.urgent)] if measured.urgent else []
        if measured.least:
            said += [text("set_share_least", name=measured.least_name, share=measured.least)]
    elif diagnosis.knows_urgent and diagnosis.advice_errors is None:
        missed, raised = promise.urgent_missed, promise.urgent_raised
        said += [text("set_missed", share=missed)] if missed else []
        said += [text("set_raised", share=raised)] if raised else []
    return said


def how_combined(diagnosis: Diagnosis) -> str:
    """Return what was done to the networks' mean; empty for one network, or where nothing was."""
    if len(diagnosis.votes) < 2 or abs(diagnosis.temperature - 1) < 0.005:
        return ""
    images = "local" if diagnosis.source.adapted else "validation"
    key = "combined_sharper" if diagnosis.temperature < 1 else "combined_softer"
    return text(key, temperature=diagnosis.temperature, images=images)


def learned_from(diagnosis: Diagnosis) -> str:
    """Return which images the model learned from and what it knows nothing about."""
    use = diagnosis.source.use
    return use.learned if use else diagnosis.source.expects


def unknown(diagnosis: Diagnosis) -> list[str]:
    """Return which conditions the model knows and which urgent ones it does not, and its use."""
    source = diagnosis.source
    named = text("known_names", names=diagnosis.known) if diagnosis.known else ""
    uses = source.use.purpose_text if source.use else ""
    expects = source.expects if source.use else ""
    said = (named, lacks(diagnosis.unknown_urgent), uses, expects, source.adapted)
    return [sentence for sentence in said if sentence]


def basis(diagnosis: Diagnosis, metrics: Metrics) -> list[str]:
    """Return what an answer rests on, in sentences; the last one names the photo files."""
    source = diagnosis.source
    digest = text("bundle_digest", digest=source.digest[:16]) if source.digest else ""
    evaluated = source.evaluation and text("bundle_evaluation", digest=source.evaluation[:16])
    values = {"name": source.name, "day": source.created[:10], "version": source.version[:16]}
    calibrated = "calibrated_by_class" if source.by_class else "calibrated"
    sentences = (
        text("bundle", **values),
        joined(digest, evaluated),
        text("taxonomy", taxonomy=source.taxonomy, review=source.review),
        source.use.licensed if source.use else "",
        text(calibrated if source.calibrated else "not_calibrated"),
        measured(metrics) or text("measured_elsewhere" if source.evaluation else "not_measured"),
        ood_sentence(diagnosis),
        text("photo_hashes", hashes=[photo.sha256[:16] for photo in diagnosis.photos]),
    )
    return [sentence for sentence in sentences if sentence]


def ood_sentence(diagnosis: Diagnosis) -> str:
    """Return what the out-of-distribution check found."""
    if diagnosis.familiarity is None:
        return text("ood_none")
    return text("ood", share=diagnosis.familiarity)


def measured(metrics: Metrics) -> str:
    """Return what the bundle's evaluation measured, in sentences; empty when it says nothing."""
    ensemble = part_of(metrics, "ensemble")
    images = metrics.get("pictures") if metrics else None
    top1, balanced = (share_of(ensemble.get(key), images) for key in ("top1", "balanced_accuracy"))
    off = part_of(ensemble, "calibration_error").get("value")
    return joined(
        text("measured_top1", split=split_of(metrics), share=top1) if top1 else "",
        text("measured_balanced", share=balanced) if balanced else "",
        text("measured_off", value=Digits(off, 1)) if isinstance(off, float) else "",
        _observed(metrics),
    )


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
    if observed and isinstance(said, float):
        where = text("measured_band", said=said, share=observed)
    return joined(text("measured_ratio", **figures), where)


def measured_like(diagnosis: Diagnosis, metrics: Metrics) -> str:
    """Return how often images with about the first probability had that condition, if measured."""
    if diagnosis.abstained or diagnosis.used_facts:
        return ""
    right = right_at(metrics, diagnosis.candidates[0].probability)
    return text("measured_like", share=right) if right else ""
