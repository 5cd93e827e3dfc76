"""Observations of an answer in FHIR R4, as plain values, and the elements they are made of."""

from decimal import Decimal
from typing import Any

from skindx.clinic.codes import ICD10_URI, SNOMED_URI, Concept, sites, snomed
from skindx.clinic.narrative import RiskFigure, risk_figures, risk_is_sure
from skindx.core.text import printable
from skindx.diagnosis.case import Patient
from skindx.diagnosis.guarantees import guarantee, risk_guarantee
from skindx.diagnosis.record import CANNOT_RULE_OUT, Candidate, Diagnosis, UrgentRisk
from skindx.models.urgent_risk import QUESTION_WORDS, Question

CODES = "urn:skindx:observation"
"""System of the codes of observations; the guide lists them."""
_URGENCY = "urn:skindx:urgency"
_UNITS = "http://unitsofmeasure.org"
_ABSENT = "http://terminology.hl7.org/CodeSystem/data-absent-reason"
_CATEGORY = "http://terminology.hl7.org/CodeSystem/observation-category"
_INTERPRETATION = "http://terminology.hl7.org/CodeSystem/v3-ObservationInterpretation"
_DIGITS = 6
"""Of a probability; two runtimes agree to fewer."""

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
    urgency = coded(_URGENCY, step.urgency, step.urgency, step.advice)
    remarks = notes(step.because, CANNOT_RULE_OUT)
    return _observation("next-step", "Next step", valueCodeableConcept=urgency, note=remarks)


def _conditions(diagnosis: Diagnosis) -> Plain:
    """Return the probabilities of conditions; of an abstention none, but why."""
    code, display = "conditions", "Conditions that the photographs may show"
    if diagnosis.abstained:
        return _observation(code, display, dataAbsentReason=_absent("unknown", diagnosis.abstained))
    components = []
    for candidate in diagnosis.candidates:
        component = _component(condition_concept(candidate), candidate.probability)
        if candidate.in_set:
            component["interpretation"] = [{"text": "in the set of possible conditions"}]
        components.append(component)
    remarks = notes(guarantee(diagnosis), diagnosis.agreement, diagnosis.mix)
    return _observation(code, display, component=components, note=remarks)


def _risk(diagnosis: Diagnosis, risk: UrgentRisk | None, question: Question) -> Plain:
    """Return the risk with both errors of its threshold; absent where it would reassure falsely.

    An abstention doubts its own probabilities: they may still warn, and a low risk is then none.
    """
    condition, called = QUESTION_WORDS[question]
    code, display = question.replace("_", "-"), f"Risk of an {condition} condition"
    if risk is None:
        why = diagnosis.no_urgent_risk or "The bundle has no threshold of the risk."
        return _observation(code, display, dataAbsentReason=_absent("unsupported", why))
    components = [part for one in risk_figures(risk, question) for part in _figure(one)]
    remarks = notes(risk_guarantee(diagnosis) if question == "urgent_risk" else "", CANNOT_RULE_OUT)
    if not risk_is_sure(diagnosis, risk):
        absent = _absent("unknown", diagnosis.abstained)
        return _observation(code, display, dataAbsentReason=absent, note=remarks)
    interpretation: Plain = {"text": "below the threshold, which rules out no disease"}
    if risk.is_reached:
        text = f"at or above the threshold: {called}"
        interpretation = coded(_INTERPRETATION, "A", "Abnormal", text)
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
    photo, text = diagnosis.photos[place], f"Photo {place + 1} is good enough for an answer"
    remarks = notes(*photo.remarks, photo.boxes_found)
    return _observation("photo-valid", text, valueBoolean=True, note=remarks)


def given_facts(diagnosis: Diagnosis) -> Plain:
    """Return the facts given about the person; empty where none is."""
    patient = diagnosis.patient
    components: list[Plain] = []
    if patient.age is not None:
        years = {"value": patient.age, "unit": "years", "system": _UNITS, "code": "a"}
        components.append({"code": {"text": "age"}, "valueQuantity": years})
    for name, value in (
        ("sex", patient.sex),
        ("place on the body", patient.site),
        ("side of the body", patient.laterality),
        ("duration", patient.duration),
        ("Fitzpatrick skin type", patient.skin_type),
    ):
        if value is not None:
            components.append({"code": {"text": name}, "valueString": str(value)})
    if not components:
        return {}
    more = {"category": [coded(_CATEGORY, "survey", "Survey")], "component": components}
    return _observation("given-facts", "Facts given", **more, note=notes(diagnosis.use_of_facts))


def condition_concept(candidate: Candidate) -> Plain:
    """Return a condition with its codes, as far as it has some."""
    codings: list[Plain] = []
    if candidate.icd10:
        codings.append({"system": ICD10_URI, "code": candidate.icd10})
    if concept := snomed(candidate):
        codings.append(_snomed(concept))
    coding = {"coding": codings} if codings else {}
    return coding | {"text": text_value(candidate.name)}


def body_site(patient: Patient) -> Plain:
    """Return the element `bodySite`; empty where no place was given."""
    if patient.site is None:
        return {}
    concept = sites().get(patient.site)
    coding = {"coding": [_snomed(concept)]} if concept else {}
    return {"bodySite": coding | {"text": patient.place}}


def _snomed(concept: Concept) -> Plain:
    return {"system": SNOMED_URI, "code": concept.code, "display": concept.meaning}


def coded(system: str, code: str, display: str, text: str = "") -> Plain:
    """Return a CodeableConcept of one code; its text is that of the code where none is given."""
    coding = {"system": system, "code": code, "display": display}
    return {"coding": [coding], "text": text_value(text or display)}


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
        name = f"{figure.name}, 95 % interval, {share.pictures} images"
        interval = {"low": _quantity(share.low), "high": _quantity(share.high)}
        code = coded(CODES, f"{figure.code}-interval", name)
        components.append({"code": code, "valueRange": interval})
    return components


def notes(*texts: str) -> list[Plain]:
    """Return an Annotation of each text that says something."""
    return [{"text": text_value(text)} for text in texts if text]


def text_value(text: str) -> str:
    """Return text as FHIR takes it: printable, not empty, without space at its ends."""
    return printable(text).strip() or "–"
