"""An answer as a FHIR Bundle: DiagnosticReport, Observations, Device, Media, and who it is about.

HL7 FHIR R4 (4.0.1). Resources are checked by the models of R4B (4.3.0), of which only elements are
used that R4 has too. Whoever the photos are of is named by what was given, and by nothing else.
"""

import base64
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from html import escape
from typing import Any

from skindx import __version__
from skindx.clinic.narrative import (
    ICD10_URI,
    SNOMED_URI,
    Concept,
    RiskFigure,
    next_step,
    possible,
    reached_name,
    risk_figures,
    risk_is_sure,
    risk_name,
    sections,
    sites,
    snomed,
)
from skindx.core.machine import require_extra
from skindx.core.text import printable
from skindx.diagnosis import answer_texts
from skindx.diagnosis.case import Patient
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import Candidate, Diagnosis, UrgentRisk
from skindx.models.urgent_risk import Question
from skindx.texts.catalogue import joined, text

CODES = "urn:skindx:observation"
"""System of the codes of observations; the guide lists them."""
_URGENCY = "urn:skindx:urgency"
_UNITS = "http://unitsofmeasure.org"
_LOINC = "http://loinc.org"
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
    remarks = notes(step.because, *step.more, text("cannot_rule_out"))
    return _observation("next-step", text("next_step"), valueCodeableConcept=urgency, note=remarks)


def _conditions(diagnosis: Diagnosis) -> Plain:
    """Return the probabilities of conditions; of an abstention none, but why."""
    code, display = "conditions", text("conditions_heading")
    if diagnosis.abstained:
        return _observation(code, display, dataAbsentReason=_absent("unknown", diagnosis.abstained))
    components = []
    for candidate in diagnosis.candidates:
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
    errors = joined(*answer_texts.errors(diagnosis)) if question == "urgent_risk" else ""
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
        code: Plain = {"text": fact.fhir}
        if fact.loinc:
            code = coded(_LOINC, fact.loinc, fact.question, fact.fhir)
        shown: Plain = {"valueString": str(value)}
        if fact.unit == "years":
            years = {"value": value, "unit": "years", "system": _UNITS, "code": "a"}
            shown = {"valueQuantity": years}
        components.append({"code": code} | shown)
    if not components:
        return {}
    more = {"category": [coded(_CATEGORY, "survey", "Survey")], "component": components}
    return _observation(
        "given-facts", text("facts_observed"), **more, note=notes(diagnosis.use_of_facts)
    )


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


MEDIA_TYPE = "application/fhir+json"
VERSION = "4.0"

_GATE = "urn:skindx:gate"
_SERVICE = "http://terminology.hl7.org/CodeSystem/v2-0074"
_MEDIA = "http://terminology.hl7.org/CodeSystem/media-type"
_UID = "urn:dicom:uid"
_ISSUES = {
    **{400: "invalid", 406: "not-supported", 413: "too-long"},
    **{422: "processing", 503: "throttled"},
}
"""Type of an issue by the status of the answer."""


@dataclass(frozen=True)
class Subject:
    """Who and which study an answer is about, as it was given; "" where it was not."""

    patient_id: str = ""
    study_uid: str = ""
    instance_uids: tuple[str, ...] = ()
    """SOP instance UID of each photo that is a DICOM image, else ""; empty: none is."""


@dataclass(frozen=True)
class Attachments:
    """Files that a bundle carries within."""

    photos: Sequence[bytes] = ()
    """JPEG of each photo, upright and without metadata."""
    pdf: bytes = b""


@dataclass
class _Entries:
    """Resources of a bundle; each is named by a UUID that follows from the answer."""

    seed: str
    resources: list[tuple[str, Plain]] = field(default_factory=list)

    def add(self, resource: Plain) -> Plain:
        """Add a resource and return the reference to it."""
        name = f"{self.seed}/{resource['resourceType']}/{len(self.resources)}"
        url = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, name)}"
        self.resources.append((url, resource))
        return {"reference": url}

    def entries(self) -> list[Plain]:
        """Return all of them, the report, which came last, first."""
        ordered = [self.resources[-1], *self.resources[:-1]]
        return [{"fullUrl": url, "resource": resource} for url, resource in ordered]


def fhir_json(
    diagnosis: Diagnosis,
    metrics: Plain | None,
    when: datetime,
    subject: Subject | None = None,
    attached: Attachments | None = None,
) -> bytes:
    """Return the bundle as JSON; `metrics` are the bundle's own, `when` bears a time zone.

    The same answer at the same time gives the same bytes. Raises UserError without fhir.resources.
    """
    require_fhir("a FHIR report")
    from fhir.resources.R4B.bundle import Bundle

    plain = _bundle(diagnosis, metrics, when, subject or Subject(), attached or Attachments())
    checked = Bundle.model_validate(plain)
    return json.dumps(json.loads(checked.model_dump_json()), indent=2, ensure_ascii=False).encode()


def require_fhir(purpose: str) -> None:
    """Raise UserError where fhir.resources is not installed; `purpose` begins the sentence."""
    require_extra("clinic", "fhir", purpose=purpose)


def _bundle(
    diagnosis: Diagnosis,
    metrics: Plain | None,
    when: datetime,
    subject: Subject,
    attached: Attachments,
) -> Plain:
    issued = when.isoformat(timespec="seconds")
    seed = [diagnosis.model_dump_json(), issued, subject.patient_id, subject.study_uid]
    entries = _Entries(" ".join(seed))
    common: Plain = {}
    if subject.patient_id:
        sex = {"gender": diagnosis.patient.sex} if diagnosis.patient.sex else {}
        identifier = [{"value": text_value(subject.patient_id)}]
        patient = {"resourceType": "Patient", "identifier": identifier, **sex}
        common["subject"] = entries.add(patient)
    device = entries.add(_device(diagnosis))
    site = body_site(diagnosis.patient)
    media = [
        entries.add(_media(diagnosis, place, subject, attached) | common | site)
        for place in range(len(diagnosis.photos))
    ]
    shared = common | {"device": device, "issued": issued}
    on_photos = shared | site | {"derivedFrom": media}
    observed = [one | on_photos for one in observations(diagnosis)]
    for place, link in enumerate(media):
        observed.append(photo_valid(diagnosis, place) | shared | {"derivedFrom": [link]})
    if given := given_facts(diagnosis):
        observed.append(given | common | {"issued": issued})
    results = [entries.add(observation) for observation in observed]
    use = diagnosis.source.use
    said = (use.sentence if use else "", diagnosis.notice)
    report: Plain = {
        "resourceType": "DiagnosticReport",
        "text": {"status": "additional", "div": _div(diagnosis, metrics)},
        "status": "preliminary",
        "category": [coded(_SERVICE, "OTH", "Other")],
        "code": coded(CODES, "report", text("report_title")),
        **common,
        "issued": issued,
        "result": results,
        "media": [
            {"comment": text("photo_label", number=n), "link": link}
            for n, link in enumerate(media, 1)
        ],
        "conclusion": text_value(" ".join(filter(None, [*next_step(diagnosis), *said]))),
    }
    if subject.study_uid:
        report["imagingStudy"] = [{"identifier": _uid(subject.study_uid)}]
    if codes := [condition_concept(candidate) for candidate in possible(diagnosis)]:
        report["conclusionCode"] = codes
    if attached.pdf:
        report["presentedForm"] = [
            {
                "contentType": "application/pdf",
                "data": _base64(attached.pdf),
                "title": text("report_file"),
            }
        ]
    entries.add(report)
    return {
        "resourceType": "Bundle",
        "type": "collection",
        "timestamp": issued,
        "entry": entries.entries(),
    }


def _device(diagnosis: Diagnosis) -> Plain:
    source = diagnosis.source
    versions = [
        ("skindx", __version__),
        ("bundle version, SHA-256", source.version),
        ("bundle digest, SHA-256", source.digest),
        ("evaluation digest, SHA-256", source.evaluation),
        ("runtime", source.backend),
    ]
    calibrated = "" if source.calibrated else text("not_calibrated")
    review = text("taxonomy_review", taxonomy=source.taxonomy, review=source.review)
    said = [diagnosis.notice, joined(review, text("codes_not_reviewed"))]
    limits = [*said, source.learned_from, source.expects, source.adapted]
    device: Plain = {
        "resourceType": "Device",
        "deviceName": [
            {
                "name": text_value(text("device_name", name=source.name)),
                "type": "user-friendly-name",
            }
        ],
        "type": coded(CODES, "skindx", text("device")),
        "version": [
            {"type": {"text": name}, "value": text_value(value)}
            for name, value in versions
            if value
        ],
        "note": notes(*limits, calibrated),
    }
    if source.digest:
        system = "urn:skindx:bundle-digest"
        device["identifier"] = [{"system": system, "value": source.digest}]
    return device


def _media(diagnosis: Diagnosis, place: int, subject: Subject, attached: Attachments) -> Plain:
    photo = diagnosis.photos[place]
    content: Plain = {"title": text("photo_label", number=place + 1)}
    if attached.photos:
        content |= {"contentType": "image/jpeg", "data": _base64(attached.photos[place])}
    identifiers = [{"system": "urn:skindx:photo-sha256", "value": photo.sha256}]
    if any(subject.instance_uids[place : place + 1]):
        identifiers.append(_uid(subject.instance_uids[place]))
    return {
        "resourceType": "Media",
        "identifier": identifiers,
        "status": "completed",
        "type": coded(_MEDIA, "image", "Image"),
        "height": photo.height,
        "width": photo.width,
        "content": content,
    }


def outcome(status: int, error: str, refused: Refused | None = None) -> Plain:
    """Return an OperationOutcome of an HTTP error, with an issue for each refused photo."""
    error_code = {"severity": "error", "code": _ISSUES.get(status, "exception")}
    issues: list[Plain] = [
        error_code
        | {
            "details": coded(_GATE, one.gate, one.gate, one.text[:1].upper() + one.text[1:]),
            "diagnostics": text("photo_label", number=one.photo + 1),
        }
        for one in (refused.refusals if refused else ())
    ]
    plain = error_code | {"details": {"text": text_value(error)}}
    return {"resourceType": "OperationOutcome", "issue": issues or [plain]}


def _uid(uid: str) -> Plain:
    return {"system": _UID, "value": f"urn:oid:{uid}"}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _div(diagnosis: Diagnosis, metrics: Plain | None) -> str:
    """Return the whole answer as XHTML; names come from a bundle, which is untrusted."""
    parts = [
        f"<h2>{escape(section.heading)}</h2>"
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
        for section in sections(diagnosis, metrics)
    ]
    return f'<div xmlns="http://www.w3.org/1999/xhtml">{"".join(parts)}</div>'
