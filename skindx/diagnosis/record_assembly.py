"""The answer to a case, assembled: its record, heat maps, similar cases and photos to show."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.diagnosis.bundle_statement import BundleStatement
from skindx.diagnosis.case import Patient
from skindx.diagnosis.checklist_advice import with_checklist
from skindx.diagnosis.conclusion import LEAST_ALIKE, CaseConclusion
from skindx.diagnosis.heat_maps import heat_maps, heat_png, is_off
from skindx.diagnosis.photo_checks import LONGEST_SIDE, VIEW_QUALITY, CheckedCase, CheckedPhoto
from skindx.diagnosis.record import (
    LEAST_SHOWN,
    Candidate,
    CaseAnswer,
    Diagnosis,
    Photo,
    PhotoView,
    Similar,
    Vote,
)
from skindx.diagnosis.record_figures import AdviceErrors, ModalitySaid, UrgentRisk
from skindx.diagnosis.scope import giving_no_time
from skindx.imaging.cut_lesions import lesion_region
from skindx.imaging.resize import small_jpeg
from skindx.texts.catalogue import joined, text

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import CaseOutput, Predictor

TOP = 5
"""Candidates that a record holds at least; the whole conformal set is always in it."""
SHOWN = 6
"""Similar cases that a record holds at most."""


# P = photos of a case, C = classes, M = members, D = dimensions


def assemble(
    predictor: "Predictor",
    checked: CheckedCase,
    photos: tuple[Photo, ...],
    output: "CaseOutput",
    drawn: CaseConclusion,
    *,
    stated: BundleStatement,
    said: Sequence[int] = (),
) -> CaseAnswer:
    """Return the answer to a case, with the records of its photos and the conclusion on it.

    Photos `said`, from 0, pass the check of modality because a person says how they were taken.

    An abstention has neither heat maps nor similar cases: they would explain a name that is no
    answer, and labels of near images would name what the model does not know.
    """
    seen, heats = [*checked.passed.values()], [b""] * len(photos)
    similar: tuple[Similar, ...] = ()
    thumbnails: tuple[bytes, ...] = ()
    if not drawn.conclusion.abstained:
        heats, photos = _heats(predictor, output, seen, photos, drawn.deciding)
        similar, thumbnails = similar_cases(predictor, output.embeddings_PD, seen)
    patient = checked.case.patient
    found: dict[str, Any] = {"similar": similar, "has_heat": any(heats)}
    if said and stated.said:  # neither error of the advice was measured on such photos
        of_said = stated.said.model_copy(update={"photos": tuple(place + 1 for place in said)})
        stated, found["said"] = replace(stated, advice=None), of_said
    diagnosis = _record(predictor, patient, photos, drawn, stated=stated, **found)
    differ = do_photos_differ(output.embeddings_PD) or bool(
        text("abstain_photos_differ") in drawn.conclusion.abstained
    )
    diagnosis = diagnosis.model_copy(update={"photos_differ": differ})
    views = tuple(
        PhotoView(small_jpeg(photo.decoded.pixels_HWC, LONGEST_SIDE, quality=VIEW_QUALITY), heat)
        for photo, heat in zip(seen, heats, strict=True)
    )
    given = datetime.now(UTC).isoformat(timespec="seconds")
    features = tuple(row_D.tobytes() for row_D in output.embeddings_PD.astype("<f2"))
    return CaseAnswer(diagnosis, views, thumbnails, given, features)


def do_photos_differ(embeddings_PD: NDArray[np.float32]) -> bool:
    """Tell whether any two photos of a case are less alike than LEAST_ALIKE."""
    return bool((embeddings_PD @ embeddings_PD.T).min() < LEAST_ALIKE)


def _heats(
    predictor: "Predictor",
    output: "CaseOutput",
    seen: Sequence[CheckedPhoto],
    photos: Sequence[Photo],
    deciding: int,
) -> tuple[list[bytes], tuple[Photo, ...]]:
    """Return each photo's heat map for the deciding condition as PNG, b"" where none is.

    The records of the photos say whether it lies off the lesion. Photos are taken one by one, see
    `Member._passes`.
    """
    pngs, said = [], []
    for place, (photo, record) in enumerate(zip(seen, photos, strict=True)):
        pixels = photo.decoded.pixels_HWC
        maps = [map_[place : place + 1] for map_ in output.maps]
        (heat,) = heat_maps(predictor.ensemble, maps, [deciding], [pixels])
        off = heat is not None and is_off(heat, lesion_region(pixels))
        pngs.append(b"" if heat is None else heat_png(heat))
        said.append(record.model_copy(update={"heat_off": off}))
    return pngs, tuple(said)


def similar_cases(
    predictor: "Predictor", embeddings_PD: NDArray[np.float32], photos: Sequence[CheckedPhoto]
) -> tuple[tuple[Similar, ...], tuple[bytes, ...]]:
    """Return the nearest cases to the mean of a case's photos, and a JPEG of each, or b"".

    A photo that the gallery holds is no case that is similar to itself, nor is the same lesion.
    """
    if predictor.gallery is None:
        return (), ()
    mean_D = embeddings_PD.mean(axis=0)
    mean_D = (mean_D / max(float(np.linalg.norm(mean_D)), 1e-12)).astype(np.float32)
    near = predictor.gallery.nearest(mean_D, SHOWN, [seen.decoded.sha256 for seen in photos])
    names = {skin_class.key: skin_class.name for skin_class in predictor.bundle.taxonomy.classes}
    cases = tuple(
        Similar(
            key=neighbour.row.label,
            name=names.get(neighbour.row.label, neighbour.row.label),
            confirmed_by=neighbour.row.confirmed_by,
            similarity=neighbour.cosine,
            sha256=neighbour.row.sha256,
            licence=neighbour.row.licence,
            credit=neighbour.row.attribution or neighbour.row.creator,
            page_url=neighbour.row.page_url,
        )
        for neighbour in near
    )
    return cases, tuple(neighbour.thumbnail for neighbour in near)


def _record(
    predictor: "Predictor",
    patient: Patient,
    photos: tuple[Photo, ...],
    drawn: CaseConclusion,
    *,
    stated: BundleStatement,
    similar: tuple[Similar, ...],
    has_heat: bool,
    said: ModalitySaid | None = None,
) -> Diagnosis:
    conclusion = drawn.conclusion
    classes = predictor.bundle.taxonomy.classes
    keys = [skin_class.key for skin_class in classes]
    urgent = next((one.key for one, *_ in conclusion.ranked if one.urgency == "urgent"), "")
    firsts = zip(predictor.ensemble.members, drawn.members_MC, strict=True)
    # What was measured, was measured by photos alone.
    unmeasured = bool(drawn.used or conclusion.abstained)
    advice, sets = (None, None) if drawn.used or drawn.is_beyond else (stated.advice, stated.sets)
    promise = conclusion.promise
    if promise and sets:
        promise = promise.model_copy(update={"measured": sets})
    no_heat = "heat_abstained" if conclusion.abstained else "heat_none"
    no_similar = "" if predictor.gallery else text("similar_none")
    no_wait = joined(text("no_wait_said") if said else "", stated.no_wait)
    step = giving_no_time(conclusion.next_step, no_wait, now=said is not None)
    return Diagnosis(
        notice=stated.notice,
        language=stated.language,
        next_step=with_checklist(step, patient),
        not_useful=stated.not_useful,
        advice_errors=advice,
        confused=None if unmeasured else stated.confused.get(conclusion.ranked[0][0].key),
        modality_said=said,
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
            if place < TOP
            or in_set
            or probability >= LEAST_SHOWN
            or skin_class.key in (conclusion.next_step.decided_by, urgent)
        ),
        promise=promise,
        no_promise=stated.no_promise,
        urgent_risk=measured_risk(conclusion.urgent_risk, advice),
        soon_risk=conclusion.soon_risk,
        no_urgent_risk=stated.no_urgent_risk,
        votes=tuple(
            Vote(member=one.name, key=keys[row_C.argmax()], probability=min(float(row_C.max()), 1))
            for one, row_C in firsts
        ),
        disagreement=conclusion.disagreement,
        familiarity=drawn.ood_p_value,
        photos=photos,
        similar=similar,
        no_similar=text("similar_abstained") if conclusion.abstained else no_similar,
        no_heat="" if has_heat else text(no_heat),
        known=stated.known,
        unknown_urgent=stated.unknown_urgent,
        prevalence=stated.prevalence,
        mix=stated.mix,
        temperature=predictor.ensemble.temperature,
        knows_urgent=stated.knows_urgent,
        patient=patient,
        used_facts=drawn.used,
        source=stated.source,
    )


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
