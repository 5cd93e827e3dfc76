"""A kept case as a plain value, and what its keeping rests on."""

from dataclasses import dataclass
from datetime import datetime

from skindx.diagnosis.record import Diagnosis
from skindx.errors import UserError

CONSENT = (
    "The patient agrees that these photos and this answer are kept in this case book under a "
    "pseudonym, are compared with later ones, and, once a clinician has confirmed a diagnosis, "
    "may be used to train this model. They may be deleted at any time."
)

CONSENT_TO_SCAN = (
    "The patient agrees that a small copy of these photos, the lesions on them and this result are "
    "kept in this case book under a pseudonym and are compared with later scans. They may be "
    "deleted at any time."
)

LONGEST_NAME = 80
LONGEST_NOTE = 4000


@dataclass(frozen=True, slots=True)
class KeptCase:
    """One case of a case book; its photos are JPEG of at most 1280 pixels without metadata."""

    id: str
    owner: str
    patient: str
    """A pseudonym."""
    lesion: str
    taken: datetime
    consent: str
    consented: datetime
    diagnosis: Diagnosis
    confirmed: str
    """Class key that a clinician confirmed; "" until then."""
    note: str
    version: int
    """Grows with each change; an edit names the version that it was made from."""
    photos: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Lesion:
    """One lesion of a patient over time."""

    patient: str
    lesion: str
    cases: int
    last: datetime


def checked_name(text: str, what: str) -> str:
    """Return a name without space around it. Raises UserError for none and for too long a one."""
    name = " ".join(text.split())
    if not name:
        raise UserError(f"the {what} has no name; give it one, such as P-017 or left forearm.")
    if len(name) > LONGEST_NAME:
        raise UserError(
            f"the {what} {name[:20]!r} … has {len(name)} characters; use at most {LONGEST_NAME}."
        )
    if not name.isprintable():
        raise UserError(
            f"the {what} {name!r} holds a character that cannot be seen, such as one that turns "
            "the direction of writing; type the name again, without it."
        )
    return name
