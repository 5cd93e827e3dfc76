"""An answer as a FHIR Bundle: DiagnosticReport, Observations, Device, Media, and who it is about.

Of a kept case it holds what was done, too.

HL7 FHIR R4 (4.0.1). Resources are checked by the models of R4B (4.3.0), of which only elements are
used that R4 has too. Whoever the photos are of is named by what was given, and by nothing else.
"""

import base64
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from html import escape

from skindx import __version__
from skindx.clinic.fhir_actions import actions_taken
from skindx.clinic.fhir_observations import (
    CODES,
    Plain,
    body_site,
    coded,
    condition_concept,
    given_facts,
    notes,
    observations,
    photo_valid,
    recorded_concept,
    recorded_observation,
    text_value,
)
from skindx.clinic.narrative import (
    Section,
    conclusion,
    sections,
)
from skindx.core.machine import require_extra
from skindx.diagnosis.filing import (
    NOT_FILED,
    Filing,
    possible,
)
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import Diagnosis, in_its_language
from skindx.texts.catalogue import joined, spoken, text

MEDIA_TYPE = "application/fhir+json"
VERSION = "4.0"

_GATE = "urn:skindx:gate"
_ANSWER, _REPORT = "urn:skindx:answer", "urn:skindx:report"
"""Systems of identifiers: all versions of the report on one answer have the first in common."""
_REPLACES = "http://hl7.org/fhir/StructureDefinition/diagnosticReport-replaces"
_PERFORMER = "software"
_ABSENT_URL = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"
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
        url = _name(name)
        self.resources.append((url, resource))
        return {"reference": url}

    def entries(self) -> list[Plain]:
        """Return all of them, the report, which came last, first."""
        ordered = [self.resources[-1], *self.resources[:-1]]
        return [{"fullUrl": url, "resource": resource} for url, resource in ordered]


@in_its_language(named=False)
def fhir_json(
    diagnosis: Diagnosis,
    metrics: Plain | None,
    when: datetime,
    subject: Subject | None = None,
    attached: Attachments | None = None,
    *,
    filing: Filing = NOT_FILED,
) -> bytes:
    """Return the bundle as JSON; `metrics` are the bundle's own, `when` bears a time zone.

    The patient is that of `subject`, or else of `filing`, which also makes a report amended.
    The same answer at the same time gives the same bytes. Raises UserError without fhir.resources.
    """
    require_fhir("a FHIR report")
    from fhir.resources.R4B.bundle import Bundle

    subject = subject or Subject()
    whose = subject.patient_id or filing.patient
    subject, filing = replace(subject, patient_id=whose), replace(filing, patient=whose)
    plain = _bundle(diagnosis, metrics, when, subject, attached or Attachments(), filing=filing)
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
    *,
    filing: Filing,
) -> Plain:
    issued = when.isoformat(timespec="seconds")
    made = (filing.amended or when).isoformat(timespec="seconds")
    answer = " ".join([diagnosis.model_dump_json(), issued, subject.patient_id, subject.study_uid])
    versions = [_name(f"{answer} {one}") for one in filing.seeds()]
    entries = _Entries(answer if len(versions) == 1 else f"{answer} {versions[-1]}")
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
    observed = [one | {"status": filing.status} for one in observed]
    if filing.recorded:
        observed.insert(0, recorded_observation(filing.recorded, filing.weight) | common | site)
        if filing.is_confirmed:
            observed[1]["note"] += notes(filing.weight)
    if filing.contradicts:
        observed[0]["note"] += notes(filing.contradicts)
    results = [entries.add(observation) for observation in observed]
    if whose := common.get("subject"):
        for done in actions_taken(filing, diagnosis.patient, whose, results[0]):
            entries.add(done)
    report: Plain = {
        "resourceType": "DiagnosticReport",
        "language": spoken(),
        "text": {"status": "additional", "div": _div(sections(diagnosis, metrics, when, filing))},
        "contained": [_performer()],
        **_replaces(versions),
        "identifier": [
            {"system": _ANSWER, "value": _name(answer)},
            {"system": _REPORT, "value": versions[-1]},
        ],
        "status": filing.status,
        "category": [coded(_SERVICE, "OTH", "Other")],
        "code": coded(CODES, "report", text("report_title")),
        **common,
        **_effective(diagnosis),
        "issued": made,
        "performer": [{"reference": f"#{_PERFORMER}"}],
        "result": results,
        "media": [
            {"comment": text("photo_label", number=n), "link": link}
            for n, link in enumerate(media, 1)
        ],
        "conclusion": text_value(conclusion(diagnosis, filing)),
    }
    if subject.study_uid:
        report["imagingStudy"] = [{"identifier": _uid(subject.study_uid)}]
    if codes := _conclusion_codes(diagnosis, filing):
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
        "timestamp": made,
        "entry": entries.entries(),
    }


def _name(seed: str) -> str:
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, seed)}"


def _replaces(versions: Sequence[str]) -> Plain:
    """Return that a report replaces the version before it, which is named by its identifier."""
    if len(versions) == 1:
        return {}
    before = {"type": "DiagnosticReport", "identifier": {"system": _REPORT, "value": versions[-2]}}
    return {"extension": [{"url": _REPLACES, "valueReference": before}]}


def _performer() -> Plain:
    """Return who made the report; R4 takes no device here, and no person did."""
    return {
        "resourceType": "Organization",
        "id": _PERFORMER,
        "name": text_value(text("record_software")),
    }


def _effective(diagnosis: Diagnosis) -> Plain:
    """Return the latest date of the photos, or that none is known; `issued` is the answer's."""
    if known := [photo.taken for photo in diagnosis.photos if photo.taken]:
        return {"effectiveDateTime": max(known)}
    return {"_effectiveDateTime": {"extension": [{"url": _ABSENT_URL, "valueCode": "unknown"}]}}


def _conclusion_codes(diagnosis: Diagnosis, filing: Filing) -> list[Plain]:
    """Return one code, or none: a set of several conditions is no conclusion on one of them.

    Of what a clinician recorded only a confirmed diagnosis has one.
    """
    if one := filing.recorded:
        return [recorded_concept(one)] if one.confirmed_by else []
    named = possible(diagnosis)
    if len(named) != 1 or not named[0].in_set:
        return []
    return [condition_concept(named[0])]


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
        **({"createdDateTime": photo.taken} if photo.taken else {}),
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


def _div(said: Sequence[Section]) -> str:
    """Return the whole answer as XHTML; names come from a bundle, which is untrusted."""
    parts = [
        f"<h2>{escape(section.heading)}</h2>"
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
        for section in said
    ]
    tag = f'div xmlns="http://www.w3.org/1999/xhtml" lang="{spoken()}" xml:lang="{spoken()}"'
    return f"<{tag}>{''.join(parts)}</div>"
