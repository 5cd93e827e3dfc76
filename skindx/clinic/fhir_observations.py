"""What an answer says as FHIR Observations: next step, conditions, risks, photos, facts.

HL7 FHIR R4 (4.0.1). `skindx.clinic.fhir` puts them into a bundle with their report.
"""

from decimal import Decimal
from typing import Any

from skindx.clinic.narrative import (
    ICD10_URI,
    SNOMED_URI,
    Concept,
    RiskFigure,
    reached_name,
    risk_figures,
    risk_is_sure,
    risk_name,
    sites,
    snomed,
)
from skindx.core.text import printable
from skindx.diagnosis import answer_texts, decision_texts
from skindx.diagnosis.case import Patient
from skindx.diagnosis.checklist_advice import checklist_words, urgency_given
from skindx.diagnosis.filing import (
    RecordedDiagnosis,
    urgent_first,
)
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.record import Candidate, Diagnosis
from skindx.diagnosis.record_figures import UrgentRisk
from skindx.models.urgent_risk import Question
from skindx.texts.catalogue import joined, text, word

CODES = "urn:skindx:observation"
"""System of the codes of observations; the guide lists them."""
_URGENCY = "urn:skindx:urgency"
_UNITS = "http://unitsofmeasure.org"
_LOINC = "http://loinc.org"
_ABSENT = "http://terminology.hl7.org/CodeSystem/data-absent-reason"
_CATEGORY = "http://terminology.hl7.org/CodeSystem/observation-category"
_INTERPRETATION = "http://terminology.hl7.org/CodeSystem/v3-ObservationInterpretation"
_DIGITS = 6
"""Decimals of a probability; two runtimes agree to fewer."""

Plain = dict[str, Any]


def observations(diagnosis: Diagnosis) -> list[Plain]:
    """Return what the answer says of all its photos together."""
    risks = [_risk(diagnosis, diagnosis.urgent_risk, "urgent_risk")]
    if diagnosis.soon_risk:
        risks.append(_risk(diagnosis, diagnosis.soon_risk, "soon_risk"))
    return [_next_step(diagnosis), _conditions(diagnosis), *risks]


def _observation(code: str, display: str, **more: Any) -> Plain:
    return {
        "resourceType": "Observation",
        "status": "preliminary",
        "category": [coded(_CATEGORY, "imaging", "Imaging")],
        "code": coded(CODES, code, display),
        **{name: value for name, value in more.items() if value},
    }


def _next_step(diagnosis: Diagnosis) -> Plain:
    step = diagnosis.next_step
    given = urgency_given(diagnosis)
    urgency = coded(_URGENCY, given, given, step.advice)
    remarks = notes(step.because, *step.more, text("cannot_rule_out"))
    return _observation("next-step", text("next_step"), valueCodeableConcept=urgency, note=remarks)


def _conditions(diagnosis: Diagnosis) -> Plain:
    """Return the probabilities of conditions; of an abstention none, but why."""
    code, display = "conditions", text("conditions_heading")
    if diagnosis.abstained:
        return _observation(code, display, dataAbsentReason=_absent("unknown", diagnosis.abstained))
    components = []
    for candidate in urgent_first(diagnosis.candidates):
        component = _component(condition_concept(candidate), candidate.probability)
        if candidate.in_set:
            component["interpretation"] = [{"text": text("in_possible_set")}]
        components.append(component)
    remarks = notes(answer_texts.set_sentence(diagnosis), diagnosis.agreement, diagnosis.mix)
    return _observation(code, display, component=components, note=remarks)


def _risk(diagnosis: Diagnosis, risk: UrgentRisk | None, question: Question) -> Plain:
    """Return the risk with both errors of its threshold; absent where it would reassure falsely.

    An abstention doubts its own probabilities: they may still warn, and a low risk is then none.
    """
    code, display = question.replace("_", "-"), risk_name(question)
    if risk is None:
        why = diagnosis.no_urgent_risk or text("risk_no_threshold")
        return _observation(code, display, dataAbsentReason=_absent("unsupported", why))
    components = [part for one in risk_figures(risk, question) for part in _figure(one)]
    errors = joined(*decision_texts.errors(diagnosis)) if question == "urgent_risk" else ""
    remarks = notes(errors, text("cannot_rule_out"))
    if not risk_is_sure(diagnosis, risk):
        absent = _absent("unknown", diagnosis.abstained)
        return _observation(code, display, dataAbsentReason=absent, note=remarks)
    interpretation: Plain = {"text": text("risk_below")}
    if risk.is_reached:
        interpretation = coded(_INTERPRETATION, "A", "Abnormal", reached_name(question))
    return _observation(
        code,
        display,
        valueQuantity=_quantity(risk.risk),
        interpretation=[interpretation],
        component=components,
        note=remarks,
    )


def photo_valid(diagnosis: Diagnosis, place: int) -> Plain:
    """Return that a photo passed its checks, as every photo of an answer did."""
    photo, display = diagnosis.photos[place], text("photo_valid", number=place + 1)
    remarks = notes(*photo.remarks, photo.boxes_found)
    return _observation("photo-valid", display, valueBoolean=True, note=remarks)


def given_facts(diagnosis: Diagnosis) -> Plain:
    """Return the facts given about the person; empty where none is."""
    patient = diagnosis.patient
    components: list[Plain] = []
    for name, value in patient.given.items():
        fact = INTAKE[name]
        code: Plain = {"text": word(fact.fhir)}
        if fact.loinc:
            code = coded(_LOINC, fact.loinc, fact.question, word(fact.fhir))
        shown: Plain = {"valueString": word(str(value))}
        if fact.unit == "years":
            years = {"value": value, "unit": "years", "system": _UNITS, "code": "a"}
            shown = {"valueQuantity": years}
        components.append({"code": code} | shown)
    if not components:
        return {}
    more = {"category": [coded(_CATEGORY, "survey", "Survey")], "component": components}
    return _observation(
        "given-facts",
        text("facts_observed"),
        **more,
        note=notes(diagnosis.use_of_facts, *checklist_words(diagnosis)),
    )


def condition_concept(candidate: Candidate) -> Plain:
    """Return a condition with its codes, as far as it has some."""
    codings: list[Plain] = []
    if candidate.icd10:
        codings.append({"system": ICD10_URI, "code": candidate.icd10})
    if concept := snomed(candidate):
        codings.append(_snomed(concept))
    coding = {"coding": codings} if codings else {}
    return coding | {"text": text_value(word(candidate.name))}


def body_site(patient: Patient) -> Plain:
    """Return the element `bodySite`; empty where no place was given."""
    if patient.site is None:
        return {}
    concept = sites().get(patient.site)
    coding = {"coding": [_snomed(concept)]} if concept else {}
    return {"bodySite": coding | {"text": patient.place}}


def _snomed(concept: Concept) -> Plain:
    return {"system": SNOMED_URI, "code": concept.code, "display": concept.meaning}


def coded(system: str, code: str, display: str, shown: str = "") -> Plain:
    """Return a CodeableConcept of one code; its text is that of the code where none is given."""
    coding = {"system": system, "code": code, "display": display}
    return {"coding": [coding], "text": text_value(shown or display)}


def _absent(code: str, why: str) -> Plain:
    return coded(_ABSENT, code, code.capitalize(), why)


def _component(code: Plain, share: float) -> Plain:
    return {"code": code, "valueQuantity": _quantity(share)}


def _quantity(share: float) -> Plain:
    """Return a share, 0 to 1."""
    return {"value": Decimal(str(round(share, _DIGITS))), "system": _UNITS, "code": "1"}


def _figure(figure: RiskFigure) -> list[Plain]:
    """Return a figure of a risk and its interval, each as a component."""
    components = [_component(coded(CODES, figure.code, figure.name), figure.value)]
    if share := figure.interval:
        name = text("risk_interval", name=figure.name, images=share.pictures)
        interval = {"low": _quantity(share.low), "high": _quantity(share.high)}
        code = coded(CODES, f"{figure.code}-interval", name)
        components.append({"code": code, "valueRange": interval})
    return components


def notes(*texts: str) -> list[Plain]:
    """Return an Annotation of each text that says something."""
    return [{"text": text_value(one)} for one in texts if one]


def text_value(value: str) -> str:
    """Return text as FHIR takes it: printable, not empty, without space at its ends."""
    return printable(value).strip() or "–"


def recorded_concept(one: RecordedDiagnosis) -> Plain:
    coding = {"coding": [{"system": ICD10_URI, "code": one.icd10}]} if one.icd10 else {}
    return coding | {"text": text_value(word(one.name))}


def recorded_observation(one: RecordedDiagnosis, weight: str) -> Plain:
    """Return what a clinician recorded; who did so stands in a note, and is no performer."""
    who = text("record_line", name=text("record_by"), value=one.by or text("record_unknown"))
    remarks = notes(weight, who)
    observed = _observation(
        "recorded-diagnosis",
        text("record_observation"),
        valueCodeableConcept=recorded_concept(one),
        method={"text": text_value(one.basis)},
        note=remarks,
    )
    observed |= {"status": "final" if one.confirmed_by else "preliminary"}
    observed["category"] = [coded(_CATEGORY, "exam", "Exam")]
    return observed | ({"issued": one.when.isoformat(timespec="seconds")} if one.when else {})
