"""An answer in sentences, in the order in which every output says them.

Warnings, next step, one reason, both errors of the advice, the set, the photos: these are few
words. `decided`, `unknown` and `basis` are what a page folds and a report prints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

from skindx.core.seven_points import answered
from skindx.diagnosis.advice_figures import (
    Metrics,
    combined,
    measured,
    photo_risks,
    right_at,
    seen_whole,
)
from skindx.diagnosis.checklist_advice import (
    checklist_short,
    tier_of_advice,
    urgency_given,
)
from skindx.diagnosis.conclusion import LEAST_OOD_P_VALUE, LEAST_VOTES, MOST_DISAGREEMENT
from skindx.diagnosis.decision_texts import FEW, decided_parts, errors, named_below
from skindx.diagnosis.record import Candidate, Diagnosis
from skindx.diagnosis.scope import knows, lacks, missing_cancers, shown_tier
from skindx.imaging.photo_gates import Kind
from skindx.taxonomy import Urgency, advice_for
from skindx.texts.catalogue import joined, text


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
    given: Urgency
    tier: str
    """Name of the advice's urgency."""


def written(diagnosis: Diagnosis, metrics: Metrics) -> AnswerTexts:
    """Return the texts of an answer; `metrics` are of the bundle's evaluation."""
    return AnswerTexts(
        warnings=tuple(warnings(diagnosis)),
        unsure=unsure(diagnosis),
        errors=tuple(errors(diagnosis)),
        decided={key: tuple(said) for key, said in decided_parts(diagnosis).items()},
        weak_spots=tuple(weak_spots(diagnosis)),
        set_sentence=set_sentence(diagnosis),
        tiers={one.key: shown_tier(diagnosis, one) for one in diagnosis.candidates},
        scope=tuple(scope(diagnosis)),
        knows=knows(diagnosis.known),
        unknown=tuple(unknown(diagnosis)),
        given=urgency_given(diagnosis),
        tier=tier_name(diagnosis),
        checklist=checklist_short(diagnosis) if answered(diagnosis.patient) else "",
        agreement_of_networks=agreement_of_networks(diagnosis),
        doubts=tuple(doubts(diagnosis)),
        less_sure=less_sure(diagnosis),
        suspected=suspected(diagnosis),
        basis=tuple(basis(diagnosis, metrics)),
        photo_risks=photo_risks(diagnosis),
        combined=combined(diagnosis),
        seen_whole=seen_whole(diagnosis),
    )


def tier_name(diagnosis: Diagnosis) -> str:
    """Return the name of the advice's urgency, which answers can have raised.

    The model assessed no urgency of what it did not learn.
    """
    return text(f"tier_{tier_of_advice(diagnosis)}")


def step_name(diagnosis: Diagnosis) -> str:
    """Return the urgency of the advice with its time."""
    step = diagnosis.next_step
    keys = ("soon_without_time", "soon_now")
    untimed = step.urgency == "soon" and step.advice in map(advice_for, keys)
    key = "soon_without_time" if untimed else step.urgency
    return text(f"step_{key}")


def warnings(diagnosis: Diagnosis) -> list[str]:
    """Return what a reader must know before the advice."""
    useful = [text("not_useful_yet"), *diagnosis.not_useful] if diagnosis.not_useful else []
    synthetic = [one] if (one := synthetic_warning(diagnosis)) else []
    urgent = [] if diagnosis.knows_urgent else [text("no_urgent_classes")]
    return [*modality_warning(diagnosis), *useful, *synthetic, *urgent]


def modality_warning(diagnosis: Diagnosis) -> list[str]:
    """Return what a person said against the check of modality, and what an error there means."""
    if (said := diagnosis.modality_said) is None:
        return []
    numbers = [str(number) for number in said.photos]
    otherwise, means = _SAID[said.kind]
    return [joined(text(otherwise, n=len(numbers), numbers=numbers), text(means))]


_SAID: dict[Kind, tuple[str, str]] = {
    "dermoscopic": ("said_dermoscopic", "said_dermoscopic_else"),
    "clinical": ("said_clinical", "said_clinical_else"),
}


def to_say(unless: Kind | Literal[""]) -> dict[str, str]:
    """Return the button by which a person says how refused photos were taken, and its hazard.

    `unless` is how they may be said to be taken, to get an answer; {} where none helps.
    """
    if not unless:
        return {}
    button, *means = map(text, _TO_SAY[unless])
    hazard = joined(*means, text("said_stated"))
    return {"unless": unless, "button": button, "hazard": hazard}


_TO_SAY: dict[Kind, tuple[str, str, str]] = {
    "dermoscopic": ("said_dermoscopic_do", "said_dermoscopic_only", "said_hazard_dermoscopic"),
    "clinical": ("said_clinical_do", "said_clinical_only", "said_hazard_clinical"),
}


def synthetic_warning(diagnosis: Diagnosis) -> str:
    """Return what synthetic images mean for an answer; "" where the model learned from photos."""
    source = diagnosis.source
    return source.learned_from.removeprefix(source.use.sentence if source.use else "").strip()


def unsure(diagnosis: Diagnosis) -> str:
    """Return that the model abstains and why; "" where it names conditions.

    Where it suspects one, this stands behind the suspicion: what is urgent is read first.
    """
    key = "is_unsure" if suspected(diagnosis) else "does_not_know"
    return joined(text(key), diagnosis.abstained) if diagnosis.abstained else ""


def suspected(diagnosis: Diagnosis) -> str:
    """Return which condition an abstention's reason suspects, in a sentence; "" for none.

    It stands before the signs of other diseases that would hasten the advice.
    """
    said = text("because_suspected", name=diagnosis.deciding.name)
    found = diagnosis.abstained and said in joined(
        diagnosis.next_step.because, *diagnosis.next_step.more
    )
    return said if found else ""


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
    said = [text("set_urgent_lower")] if named_below(diagnosis) else []
    if left := left_out(diagnosis):
        said += [text("not_excluded", name=left.name, share=left.probability)]
    if one := diagnosis.confused:
        whose = {"name": diagnosis.candidates[0].name, "names": one.names, "split": one.split}
        if one.called < FEW and one.most is not None:
            counts = {"called": one.called, "images": one.images, "most": one.most}
            said += [text("confused_few", **whose, **counts)]
        else:
            # More were taken for it than were missed, so the advice was urgent for some of them.
            errors = diagnosis.advice_errors
            counted = errors and (errors.only,) == one.names
            missed = errors.missed.value * errors.missed.pictures if errors and counted else inf
            key = "confused_urgent" if one.called > missed + 0.5 else "confused"
            said += [text(key, **whose, share=one.called / one.images)]
    shown = [one.name for one in diagnosis.candidates if one.in_set or one in diagnosis.outside]
    if measured and measured.least and measured.least.value < 0.5 and measured.least_name in shown:
        missed = 1 - measured.least.value
        whose = {"name": measured.least_name, "split": measured.split}
        said += [text("set_least", **whose, missed=missed)]
    return said


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
    values = {"name": source.name, "day": source.created[:10], "version": source.version[:16]}
    calibrated = "calibrated_by_class" if source.by_class else "calibrated"
    sentences = (
        text("bundle", **values),
        text("taxonomy", taxonomy=source.taxonomy, review=source.review),
        source.use.licensed if source.use else "",
        text(calibrated if source.calibrated else "not_calibrated"),
        measured(metrics) or text("measured_elsewhere" if source.evaluation else "not_measured"),
        ood_sentence(diagnosis),
        digests(diagnosis),
        text("photo_hashes", hashes=[photo.sha256[:16] for photo in diagnosis.photos]),
    )
    return [sentence for sentence in sentences if sentence]


def digests(diagnosis: Diagnosis) -> str:
    """Return the digests of the bundle and of its evaluation, in sentences; "" without any."""
    source = diagnosis.source
    digest = text("bundle_digest", digest=source.digest[:16]) if source.digest else ""
    evaluated = source.evaluation and text("bundle_evaluation", digest=source.evaluation[:16])
    return joined(digest, evaluated)


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
