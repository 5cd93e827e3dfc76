"""What was done about a kept case, as FHIR resources: requests, procedures and observations."""

from datetime import date, datetime

from skindx.clinic.fhir_observations import CODES, Plain, body_site, coded, notes, text_value
from skindx.diagnosis.case import Patient
from skindx.diagnosis.case_actions import ActionKind, CaseAction, by_login, entries_by_day
from skindx.diagnosis.filing import Filing

_REQUESTS = (ActionKind.REFERRED, ActionKind.AWAITED)
_PROCEDURES = (ActionKind.EXAMINED, ActionKind.BIOPSIED, ActionKind.EXCISED, ActionKind.ABSENT)


def actions_taken(filing: Filing, patient: Patient, subject: Plain, about: Plain) -> list[Plain]:
    """Return a resource of each entry, those of the earliest day first.

    A referral and a result that is awaited are a ServiceRequest, what was done to the patient is a
    Procedure, a known result and a closing are an Observation. `subject` and `about` refer to the
    patient and to the Observation that led to them. A struck out entry is entered in error.
    """
    entries = [one for _, one in entries_by_day(filing.actions)]
    known = [one for one in entries if one.kind is ActionKind.KNOWN and not one.struck]
    last = max(((one.day, one.when) for one in known), default=None)
    return [_resource(one, patient, about, last) | {"subject": subject} for one in entries]


def _resource(
    one: CaseAction, patient: Patient, about: Plain, known: tuple[date, datetime] | None
) -> Plain:
    who = one.clinician or by_login(one.by)
    named = {"display": text_value(who)} if who else None
    day = one.day.isoformat()
    said: Plain = {
        "code": coded(CODES, f"action-{one.kind}", one.kind.label),
        "note": notes(one.in_full),
    }
    if one.kind in _REQUESTS:
        awaited = one.kind is ActionKind.AWAITED
        is_known = awaited and known is not None and (one.day, one.when) <= known
        said |= {
            "resourceType": "ServiceRequest",
            "status": "completed" if is_known else "active",
            "intent": "order",
            "authoredOn": day,
            "reasonReference": [about],
            **({"requester": named} if named else {}),
        }
        if one.kind is ActionKind.REFERRED:
            said["performer"] = [{"display": text_value(one.detail)}]
    elif one.kind in _PROCEDURES:
        absent = one.kind is ActionKind.ABSENT
        said |= {
            "resourceType": "Procedure",
            "status": "not-done" if absent else "completed",
            "performedDateTime": day,
            "reasonReference": [about],
            **({"recorder": named} if named else {}),
            **({"statusReason": {"text": text_value(one.kind.label)}} if absent else {}),
            **{name: [site] for name, site in body_site(patient).items()},
        }
    else:
        said |= {
            "resourceType": "Observation",
            "status": "final",
            "effectiveDateTime": day,
            "valueString": text_value(one.words),
            "focus": [about],
        }
    return said | ({"status": "entered-in-error"} if one.struck else {})
