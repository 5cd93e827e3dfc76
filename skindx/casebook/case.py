"""A kept case as a plain value, and what its keeping rests on."""

from dataclasses import dataclass
from datetime import datetime

from skindx.casebook.consent import Purpose, purposes_of
from skindx.casebook.finding import Outside
from skindx.core.errors import UserError
from skindx.diagnosis.record import Diagnosis

LONGEST_NAME = 80


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
    """What the patient agreed to, word by word."""
    consented: datetime
    diagnosis: Diagnosis
    confirmed: str
    """Class key that a clinician confirmed; "" until then, and for another diagnosis."""
    outside: Outside | None
    """A confirmed diagnosis that is no class of the model."""
    note: str
    version: int
    """Grows with each change; an edit names the version that it was made from."""
    photos: tuple[bytes, ...]

    @property
    def purposes(self) -> frozenset[Purpose]:
        """What the patient agreed to: keeping, comparing, training."""
        return purposes_of(self.consent)


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
