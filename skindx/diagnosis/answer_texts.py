"""An answer in sentences, in the order in which every output says them.

Warnings, next step, one reason, both errors of the advice, the set, the photos: these are few
words. `decided`, `unknown` and `basis` are what a page folds and a report prints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from skindx.core.seven_points import answered
from skindx.diagnosis.advice_figures import (
    Metrics,
    combined,
    measured,
    photo_risks,
    right_at,
    seen_whole,
    soon_sum,
)
from skindx.diagnosis.checklist_advice import (
    checklist_short,
    checklist_words,
    is_met,
    tier_of_advice,
)
from skindx.diagnosis.conclusion import LEAST_OOD_P_VALUE, LEAST_VOTES, MOST_DISAGREEMENT
from skindx.diagnosis.record import Candidate, Diagnosis
from skindx.diagnosis.record_figures import AdviceErrors, Promise, UrgentRisk
from skindx.diagnosis.scope import knows, lacks, missing_cancers, shown_tier
from skindx.models.conformal import ALL
from skindx.taxonomy import Urgency, advice_for
from skindx.texts.catalogue import Digits, joined, text, told_apart


@dataclass(frozen=True)
class AnswerTexts:
    """An answer in sentences, written once; outputs choose and arrange them.

    The functions of this module describe the fields that are called as they are.
    """

    warnings: tuple[str, ...]
    unsure: str
    errors: tuple[str, ...]
    set_sentence: str
    decided: Mapping[str, tuple[str, ...]]
    scope: tuple[str, ...]
    unknown: tuple[str, ...]
    basis: tuple[str, ...]
    tiers: Mapping[str, Urgency | None]
    """Key of a candidate -> the urgency that may be shown beside it."""
    agreement_of_networks: str
    doubts: tuple[str, ...]
    weak_spots: tuple[str, ...]
    photo_risks: tuple[str, ...]
    combined: str
    seen_whole: str
    checklist: str
    less_sure: str
    suspected: str
    knows: str
    """How many conditions the model knows."""
    tier: str
    """Name of the advice's urgency."""


def written(diagnosis: Diagnosis, metrics: Metrics) -> AnswerTexts:
    """Return the texts of an answer; `metrics` are of the bundle's evaluation."""
    return AnswerTexts(
        warnings=tuple(warnings(diagnosis)),
        unsure=unsure(diagnosis),
        errors=tuple(errors(diagnosis)),
        set_sentence=set_sentence(diagnosis),
        basis=tuple(basis(diagnosis, metrics)),
        tiers={one.key: shown_tier(diagnosis, one) for one in diagnosis.candidates},
        scope=tuple(scope(diagnosis)),
        knows=knows(diagnosis.known),
        unknown=tuple(unknown(diagnosis)),
        decided={key: tuple(said) for key, said in decided_parts(diagnosis).items()},
        checklist=checklist_short(diagnosis) if answered(diagnosis.patient) else "",
        agreement_of_networks=agreement_of_networks(diagnosis),
        doubts=tuple(doubts(diagnosis)),
        weak_spots=tuple(weak_spots(diagnosis)),
        photo_risks=photo_risks(diagnosis),
        combined=combined(diagnosis),
        seen_whole=seen_whole(diagnosis),
        less_sure=less_sure(diagnosis),
        suspected=suspected(diagnosis),
        tier=tier_name(diagnosis),
    )


def tier_name(diagnosis: Diagnosis) -> str:
    """Return the name of the advice's urgency, or its time where answers shortened that.

    The model assessed no urgency of what it did not learn.
    """
    return text(f"tier_{tier_of_advice(diagnosis)}")


def step_name(diagnosis: Diagnosis) -> str:
    """Return the urgency of the advice with its time."""
    step = diagnosis.next_step
    untimed = step.urgency == "soon" and step.advice == advice_for("soon_without_time")
    key = "soon_without_time" if untimed else step.urgency
    return text(f"step_{key}")


FEW = 5
"""A share of fewer errors would claim too much: the count and its bound stand instead."""


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


def suspected(diagnosis: Diagnosis) -> str:
    """Return which condition an abstention's reason suspects, in a sentence; "" for none.

    It stands before the signs of other diseases that would hasten the advice.
    """
    said = text("because_suspected", name=diagnosis.deciding.name)
    found = diagnosis.abstained and said in joined(
        diagnosis.next_step.because, *diagnosis.next_step.more
    )
    return said if found else ""


def errors(diagnosis: Diagnosis) -> list[str]:
    """Return both errors of the advice in short, and which photos it is for.

    Nobody measured them with the questions.
    """
    dermoscopic = diagnosis.source.modality == "dermoscopic"
    step = diagnosis.next_step
    # An advice without urgency says it; an abstention shows no probabilities.
    met = diagnosis.patient.model_fields_set and is_met(diagnosis)
    examine = [] if step.urgency == "unknown" and not met else [text("assessed")]
    shown = [] if diagnosis.abstained else [text("assessed_dermoscopic")]
    assessed = [*examine, *shown] if dermoscopic else []
    if diagnosis.beyond:
        return [text("errors_beyond", names=diagnosis.beyond), *assessed]
    asked = step.raised_from is not None
    said = errors_of(diagnosis.advice_errors, unlike=bool(diagnosis.abstained))
    if step.urgency == "soon" and (soon := _soon(diagnosis.advice_errors)):
        said[:2] = soon  # the pair that fits the advice; that of urgent is folded
    return [*(said[:2] if asked else said), *assessed]


def _soon(measured: AdviceErrors | None) -> list[str]:
    """Return both errors of "soon" in short, where an evaluation measured them."""
    missed, raised = (measured.soon_missed, measured.soon_raised) if measured else (None, None)
    if not (measured and missed and raised):
        return []
    counts = {"missed": round(missed.value * missed.pictures), "images": missed.pictures}
    return [text("errors_soon", **counts), text("errors_soon_raised", raised=raised.value)]


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


def doubts(diagnosis: Diagnosis) -> list[str]:
    """Return what makes this set less sure than others: a network apart."""
    agree = {vote.key for vote in diagnosis.votes} == {diagnosis.candidates[0].key}
    return [] if diagnosis.abstained or agree else [diagnosis.agreement]


def less_sure(diagnosis: Diagnosis) -> str:
    """Return that a lesion that is cut makes the probabilities less reliable; "" for none.

    An abstention shows no probabilities.
    """
    cut = [str(number) for number, one in enumerate(diagnosis.photos, 1) if one.cut_by]
    if not cut or diagnosis.abstained:
        return ""
    if len(diagnosis.photos) == 1:
        return text("less_sure")
    return text("less_sure_photos", n=len(cut), numbers=cut)


def left_out(diagnosis: Diagnosis) -> Candidate | None:
    """Return the likeliest urgent condition, where an answer names a harmless one in its place."""
    urgent = next((one for one in diagnosis.candidates if one.urgency == "urgent"), None)
    named = [one for one in diagnosis.candidates if one.in_set]
    is_shown = urgent in named or urgent in diagnosis.outside
    is_harmless = diagnosis.candidates[0].urgency not in ("urgent", "soon")
    return urgent if named and is_harmless and not (is_shown or diagnosis.abstained) else None


def agreement_of_networks(diagnosis: Diagnosis) -> str:
    """Return how far the networks agree, and the two rules by which none is named."""
    count, figures = len(diagnosis.votes), {"value": diagnosis.disagreement}
    votes = text("votes_rule", least=ceil(LEAST_VOTES * count), count=count)
    rules = (votes, text("disagreement", most=MOST_DISAGREEMENT, **figures))
    return joined(diagnosis.agreement, *(rules if count > 1 else ()))


def weak_spots(diagnosis: Diagnosis) -> list[str]:
    """Return which urgent condition an answer leaves out, what is confused with the first one.

    A condition that sets left out more than half stands here if the answer shows it.
    """
    measured = diagnosis.promise.measured if diagnosis.promise else None
    if diagnosis.abstained:
        return []
    said = [text("set_urgent_lower")] if _named_below(diagnosis) else []
    if left := left_out(diagnosis):
        said += [text("not_excluded", name=left.name, share=left.probability)]
    if one := diagnosis.confused:
        counts = {"called": one.called, "images": one.images, "names": one.names}
        few = {"most": one.most} if one.called < FEW and one.most is not None else {}
        key, first = "confused_few" if few else "confused", diagnosis.candidates[0].name
        said += [text(key, name=first, split=one.split, **counts, **few)]
    shown = [one.name for one in diagnosis.candidates if one.in_set or one in diagnosis.outside]
    if measured and measured.least and measured.least.value < 0.5 and measured.least_name in shown:
        images = measured.least.pictures
        missed = {"missed": round((1 - measured.least.value) * images), "images": images}
        said += [text("set_least", name=measured.least_name, split=measured.split, **missed)]
    return said


def decided_parts(diagnosis: Diagnosis) -> dict[str, list[str]]:
    """Return how next step and set came about, and their figures, by the keys of their headings."""
    how, photos = how_combined(diagnosis), combined(diagnosis)
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
        "decided_holds": [sentence for sentence in (how, diagnosis.mix) if sentence],
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
    if diagnosis.advice_errors is None:  # what was counted of the advice says more
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
        if _named_below(diagnosis):
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


def _named_below(diagnosis: Diagnosis) -> bool:
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


def learned_from(diagnosis: Diagnosis) -> str:
    """Return which images the model learned from and what it knows nothing about."""
    use = diagnosis.source.use
    return use.learned if use else diagnosis.source.expects


def scope(diagnosis: Diagnosis) -> list[str]:
    """Return in short how many conditions the model knows and which images it learned from."""
    use, known = diagnosis.source.use, diagnosis.known
    if use and use.lacking and known:
        lacking = [*missing_cancers(diagnosis), *use.lacking]
        short = text("knows_only", n=len(known), lacking=lacking)
        return [short]  # what it learned from stands beside the advice
    return [sentence for sentence in (knows(known), learned_from(diagnosis)) if sentence]


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
        text("taxonomy", taxonomy=source.taxonomy, review=source.review),
        source.use.licensed if source.use else "",
        text(calibrated if source.calibrated else "not_calibrated"),
        measured(metrics) or text("measured_elsewhere" if source.evaluation else "not_measured"),
        ood_sentence(diagnosis),
        joined(digest, evaluated),
        text("photo_hashes", hashes=[photo.sha256[:16] for photo in diagnosis.photos]),
    )
    return [sentence for sentence in sentences if sentence]


def ood_sentence(diagnosis: Diagnosis) -> str:
    """Return what the out-of-distribution check found."""
    if diagnosis.familiarity is None:
        return text("ood_none")
    shown = text("ood", share=diagnosis.familiarity, n=len(diagnosis.photos))
    return joined(shown, text("ood_least", least=LEAST_OOD_P_VALUE))


def measured_like(diagnosis: Diagnosis, metrics: Metrics) -> str:
    """Return how often images with about the first probability had that condition, if measured."""
    if diagnosis.abstained or diagnosis.used_facts:
        return ""
    right = right_at(metrics, diagnosis.candidates[0].probability)
    return text("measured_like", share=right) if right else ""
