"""The record of a diagnosis, assembled from the outputs of networks and gates.

Probabilities that are shown, and predictive values, follow the operator's prevalence where one is
given. Sets, risk and threshold are of the uncorrected probabilities, which they were fitted on.
"""

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.diagnosis.advice_figures import advice_errors, with_measured_sets
from skindx.diagnosis.case import Patient
from skindx.diagnosis.conclusion import Conclusion
from skindx.diagnosis.photo_checks import CheckedPhoto, Opened
from skindx.diagnosis.record import (
    AdviceErrors,
    Candidate,
    Diagnosis,
    LesionBox,
    Photo,
    Similar,
    Source,
    UrgentRisk,
    UsedFacts,
    Vote,
)
from skindx.diagnosis.scope import known_names, urgent_known, without_reassurance
from skindx.imaging.cut_lesions import Cut, Edges, cut_by
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.bundle_index import CARD, EXPORTS, METRICS, shown_frame
from skindx.models.bundle.model_card import not_useful_yet
from skindx.models.ensemble import Prediction
from skindx.taxonomy import unknown_to
from skindx.texts.catalogue import joined, text

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor


# C = classes


def at_prevalence(conclusion: Conclusion, predictor: "Predictor") -> Conclusion:
    """Return a conclusion whose ranked probabilities are those of the operator's mix."""
    if predictor.prevalence is None:
        return conclusion
    keys = [skin_class.key for skin_class, _, _ in conclusion.ranked]
    shares_C = np.zeros(len(keys))
    places = {key: place for place, key in enumerate(predictor.taxonomy.keys)}
    for skin_class, probability, _ in conclusion.ranked:
        shares_C[places[skin_class.key]] = probability
    corrected_C = predictor.prevalence.correct(shares_C)
    ranked = [
        (skin_class, min(float(corrected_C[places[skin_class.key]]), 1.0), in_set)
        for skin_class, _, in_set in conclusion.ranked
    ]
    ranked.sort(key=lambda row: -row[1])
    return replace(conclusion, ranked=tuple(ranked))


def used_facts(
    predictor: "Predictor", without_C: NDArray[np.float64], conclusion: Conclusion
) -> UsedFacts | None:
    """Return what of the person the conclusion used, and what it would be without; None: nothing.

    `without_C` are the probabilities by the photos alone.
    """
    if not predictor.fields:
        return None
    if predictor.prevalence:
        without_C = predictor.prevalence.correct(without_C)
    classes, first = predictor.taxonomy.classes, int(without_C.argmax())
    leading = predictor.taxonomy.keys.index(conclusion.ranked[0][0].key)
    return UsedFacts(
        fields=predictor.fields,
        without=min(float(without_C[leading]), 1.0),
        first_without=classes[first].name if first != leading else "",
    )


def shown_prevalence(predictor: "Predictor") -> dict[str, float] | None:
    """Return the share of each condition that shown probabilities hold for; None: not known."""
    if predictor.prevalence:
        return dict(zip(predictor.taxonomy.keys, predictor.prevalence.shares_C, strict=True))
    counts = predictor.calibration_mix
    if counts is None:
        return None
    return {key: count / sum(counts.values()) for key, count in counts.items()}


def mix_text(predictor: "Predictor") -> str:
    """Return which mix of diseases the shown probabilities hold for, in sentences."""
    shares = shown_prevalence(predictor)
    if predictor.prevalence:
        risky = urgent_known(predictor.taxonomy.classes)
        return joined(
            text("mix_given", shares=_listed(predictor, shares or {})),
            text("mix_all_uncorrected" if risky else "mix_set_uncorrected"),
        )
    if shares is None:
        return joined(text("mix_unnamed"), text("mix_elsewhere"))
    key = "mix_local" if predictor.bundle.spec.adapted else "mix_calibration"
    return joined(text(key, shares=_listed(predictor, shares)), text("mix_elsewhere"))


def measured_advice(predictor: "Predictor") -> AdviceErrors | None:
    """Return both errors of the advice, with predictive values at the operator's prevalence."""
    given, rule = None, predictor.urgent_risk
    if predictor.prevalence:
        shares = zip(predictor.taxonomy.classes, predictor.prevalence.shares_C, strict=True)
        given = min(float(sum(share for one, share in shares if one.urgency == "urgent")), 1.0)
    miss_rate = rule.level(predictor.miss_rate).miss_rate if rule else None
    return advice_errors(predictor.metrics, miss_rate, given)


def measured_risk(risk: UrgentRisk | None, advice: AdviceErrors | None) -> UrgentRisk | None:
    """Return the urgent risk with both errors of the advice, and its predictive values."""
    if risk is None or advice is None:
        return risk
    stated = advice.values[0]
    measured = {
        "measured_on": advice.split,
        "measured_missed": advice.missed,
        "measured_sent_on": advice.raised,
    }
    return risk.model_copy(update=measured | stated.model_dump())


def _listed(predictor: "Predictor", shares: dict[str, float]) -> list[tuple[str, float]]:
    names = {skin_class.key: skin_class.name for skin_class in predictor.taxonomy.classes}
    return sorted(((names[key], share) for key, share in shares.items()), key=lambda row: -row[1])


TOP = 5
"""Candidates that a record holds at least; the whole conformal set is always in it."""

_MEASURED = ("detector_recall", "detector_images")
"""What was measured of the detector, and on what, decides no answer."""
_ADDED_LATER = ("images", "metadata", "ood", "urgent_risk", "whole_urgent_risk", *_MEASURED)

# C = classes, M = members


def assemble(
    predictor: "Predictor",
    patient: Patient,
    photos: tuple[Photo, ...],
    conclusion: Conclusion,
    members_MC: NDArray[np.float64],
    *,
    ood_p_value: float | None,
    used: UsedFacts | None = None,
    similar: tuple[Similar, ...],
    has_heat: bool,
) -> Diagnosis:
    """Return the record of one case."""
    keys, classes = predictor.taxonomy.keys, predictor.taxonomy.classes
    # What was measured, was measured by photos alone.
    metrics = None if used else predictor.metrics
    advice = None if used else measured_advice(predictor)
    return Diagnosis(
        next_step=without_reassurance(conclusion.next_step, classes),
        not_useful=not_useful_yet(predictor.bundle.spec, classes, predictor.metrics),
        advice_errors=advice,
        abstained=conclusion.abstained,
        candidates=tuple(
            Candidate(
                key=skin_class.key,
                name=skin_class.name,
                icd10=skin_class.icd10,
                probability=probability,
                description=skin_class.description,
                urgency=skin_class.urgency,
                in_set=in_set,
            )
            for place, (skin_class, probability, in_set) in enumerate(conclusion.ranked)
            if place < TOP or in_set or skin_class.key == conclusion.next_step.decided_by
        ),
        promise=with_measured_sets(conclusion.promise, metrics),
        no_promise=predictor.no_sets,
        urgent_risk=measured_risk(conclusion.urgent_risk, advice),
        soon_risk=conclusion.soon_risk,
        no_urgent_risk=predictor.no_urgent_risk,
        votes=tuple(
            Vote(member=name, key=keys[row_C.argmax()], probability=min(float(row_C.max()), 1))
            for name, row_C in zip(predictor.members, members_MC, strict=True)
        ),
        disagreement=conclusion.disagreement,
        familiarity=ood_p_value,
        photos=photos,
        similar=similar,
        no_similar=_no_similar(predictor, conclusion),
        no_heat="" if has_heat else text("heat_abstained" if conclusion.abstained else "heat_none"),
        known=known_names(classes),
        unknown_urgent=tuple(condition.name for condition in unknown_to(classes)),
        prevalence=shown_prevalence(predictor),
        mix=mix_text(predictor),
        temperature=predictor.ensemble.temperature,
        knows_urgent=urgent_known(classes),
        patient=patient,
        used_facts=used,
        source=source_of(predictor.bundle, predictor.backend),
    )


def _no_similar(predictor: "Predictor", conclusion: Conclusion) -> str:
    if conclusion.abstained:
        return text("similar_abstained")
    return "" if predictor.gallery else text("similar_none")


def with_cut(predictor: "Predictor", seen: CheckedPhoto, prediction: Prediction) -> CheckedPhoto:
    """Return a photo with the remark that the networks saw a part of its lesion, if they did."""
    width, height = seen.opened.width, seen.opened.height

    def share(left: float, top: float, right: float, bottom: float) -> Edges:
        return left / width, top / height, right / width, bottom / height

    boxes = [share(box.x1, box.y1, box.x2, box.y2) for box in _boxes(prediction, seen.opened) or ()]
    square = share(*_square(predictor.bundle, seen.opened))
    cut = cut_by(seen.opened.pixels_HWC, square, boxes)
    return replace(seen, cut_by=cut, remarks=(cut_text(cut), *seen.remarks)) if cut else seen


def cut_text(cut: Cut) -> str:
    """Return the remark on a photo of whose lesion the networks saw a part."""
    if cut == "square":
        return joined(text("cut_square"), text("cut_square_again"))
    return joined(text("cut_edge"), text("cut_edge_again"))


def photo_of(predictor: "Predictor", seen: CheckedPhoto, prediction: Prediction) -> Photo:
    return Photo(
        width=seen.opened.width,
        height=seen.opened.height,
        sha256=seen.opened.sha256,
        boxes=_boxes(prediction, seen.opened),
        no_boxes="" if predictor.has_detector else predictor.missing or text("no_detector"),
        square=_square(predictor.bundle, seen.opened),
        cut_by=seen.cut_by,
        remarks=seen.remarks,
        colours=tuple(sorted(seen.opened.notes)),
        taken=seen.opened.taken,
    )


def source_of(bundle: Bundle, backend: str) -> Source:
    """Return the record of the bundle that answers."""
    temperatures = (
        bundle.spec.temperature,
        *(member.temperature for member in bundle.spec.members),
    )
    return Source(
        name=bundle.spec.name,
        created=bundle.spec.created,
        version=bundle_version(bundle),
        digest=bundle.digest,
        evaluation=bundle.evaluation,
        backend=backend,
        calibrated=bool(bundle.spec.class_calibration) or any(t != 1 for t in temperatures),
        by_class=bundle.spec.class_calibration is not None,
        taxonomy=bundle.taxonomy.title,
        review=bundle.taxonomy.review_note,
        learned_from=bundle.warning,
        use=bundle.spec.use,
        modality=bundle.images.modality,
        expects=bundle.images.expects,
        adapted=bundle.spec.adapted.words if bundle.spec.adapted else "",
    )


def bundle_version(bundle: Bundle) -> str:
    """Return a SHA-256 over everything that decides an answer: weights, settings, taxonomy.

    Exports are the same weights again, checked to answer alike; a record names its backend.
    """
    files = {
        name: hash_
        for name, hash_ in bundle.spec.files.items()
        if name not in (METRICS, CARD) and not name.startswith(f"{EXPORTS}/")
    }
    deciding = bundle.spec.model_copy(update={"files": files, **dict.fromkeys(_MEASURED)})
    # A bundle of an older version lacks these; its version does not change when they stay empty.
    unset = {name for name in _ADDED_LATER if getattr(deciding, name) is None}
    return hashlib.sha256(deciding.model_dump_json(exclude=unset).encode()).hexdigest()


def _square(bundle: Bundle, opened: Opened) -> tuple[float, float, float, float]:
    """Return the part of a photo that the member sees which sees most, as it is framed."""
    top, left, side = shown_frame(bundle.spec).square_of(opened.height, opened.width)
    right, bottom = min(left + side, opened.width), min(top + side, opened.height)
    return max(left, 0), max(top, 0), right, bottom


def _boxes(prediction: Prediction, opened: Opened) -> tuple[LesionBox, ...] | None:
    """Return the boxes in pixels of the photo at full scale."""
    if prediction.boxes is None:
        return None
    height, width = opened.pixels_HWC.shape[:2]
    across, down = opened.width / width, opened.height / height
    return tuple(
        LesionBox(
            x1=box.x1 * across,
            y1=box.y1 * down,
            x2=box.x2 * across,
            y2=box.y2 * down,
            label=box.label,
            score=box.score or 0.0,
        )
        for box in prediction.boxes
    )
