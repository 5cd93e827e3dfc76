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
from html import escape

from skindx import __version__
from skindx.clinic.codes import NOT_REVIEWED
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
    text_value,
)
from skindx.clinic.narrative import next_step, possible, sections
from skindx.core.machine import require_extra
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import Diagnosis

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
    report: Plain = {
        "resourceType": "DiagnosticReport",
        "text": {"status": "additional", "div": _div(diagnosis, metrics)},
        "status": "preliminary",
        "category": [coded(_SERVICE, "OTH", "Other")],
        "code": coded(CODES, "report", "Analysis of skin photographs by skindx"),
        **common,
        "issued": issued,
        "result": results,
        "media": [{"comment": f"Photo {n}", "link": link} for n, link in enumerate(media, 1)],
        "conclusion": text_value(" ".join(filter(None, [*next_step(diagnosis), diagnosis.notice]))),
    }
    if subject.study_uid:
        report["imagingStudy"] = [{"identifier": _uid(subject.study_uid)}]
    if codes := [condition_concept(candidate) for candidate in possible(diagnosis)]:
        report["conclusionCode"] = codes
    if attached.pdf:
        report["presentedForm"] = [
            {"contentType": "application/pdf", "data": _base64(attached.pdf), "title": "Report"}
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
        ("runtime", source.backend),
    ]
    calibrated = "" if source.calibrated else "Its probabilities were not calibrated."
    review = f"Taxonomy {source.taxonomy}: {source.review}. {NOT_REVIEWED}"
    limits = [diagnosis.notice, review, source.learned_from, source.expects, source.adapted]
    device: Plain = {
        "resourceType": "Device",
        "deviceName": [
            {"name": text_value(f"skindx, bundle {source.name}"), "type": "user-friendly-name"}
        ],
        "type": coded(CODES, "skindx", "Software that classifies skin lesions on photographs"),
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
    content: Plain = {"title": f"Photo {place + 1}"}
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
            "details": coded(_GATE, one.gate, one.gate, one.message[:1].upper() + one.message[1:]),
            "diagnostics": f"Photo {one.photo + 1}",
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
