"""A case: one to three photos of one place on the skin, and optional facts about the person."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings

MAX_PHOTOS = 3

Sex = Literal["female", "male", "other"]
Site = Literal[
    "scalp", "face", "neck", "chest", "abdomen", "back", "arm", "hand", "genitals", "leg", "foot"
]
Duration = Literal["days", "weeks", "months", "years", "always"]
SkinType = Literal[1, 2, 3, 4, 5, 6]
SITES: tuple[Site, ...] = get_args(Site)


class Patient(Settings):
    """Information given about the person; all of it is optional and none is guessed.

    The networks see photos alone. Skin type chooses the conformal threshold where the calibration
    images include it; the rest is printed in the report for the clinician, and changes no answer.
    """

    age: int | None = Field(None, ge=0, le=120)
    """Years."""
    sex: Sex | None = None
    site: Site | None = None
    duration: Duration | None = None
    """For how long the change has been there."""
    skin_type: SkinType | None = None
    """Fitzpatrick 1..6."""


@dataclass(frozen=True)
class Case:
    """Photos of one lesion or region, as files' bytes, and who they are of."""

    photos: tuple[bytes, ...]
    patient: Patient = field(default_factory=Patient)

    def __post_init__(self) -> None:
        """Raise UserError for no photo, and for more than three."""
        if not 1 <= len(self.photos) <= MAX_PHOTOS:
            raise UserError(
                f"{len(self.photos)} photos came; give 1 to {MAX_PHOTOS} of the same place."
            )


CHANGES_NOTHING = (
    "Age, sex, place on the body and duration do not change the answer: the networks see the "
    "photos alone. They are printed in the report, for a clinician."
)
"""Stands above the fields for them."""
SKIN_TYPE_CHOOSES = (
    "The skin type chooses thresholds that were fitted for it, where the bundle has some; it "
    "changes no probability."
)


def use_of_facts(patient: Patient) -> str:
    """Return what the given facts changed in the answer, in a sentence; "" where none is given."""
    unused = {
        "age": patient.age is not None,
        "sex": patient.sex is not None,
        "place": patient.site is not None,
        "duration": patient.duration is not None,
    }
    names = [name for name, is_given in unused.items() if is_given]
    parts = []
    if names:
        listed = " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]
        parts.append(f"The answer does not depend on {listed}: the networks saw the photos alone.")
    if patient.skin_type is not None:
        parts.append(SKIN_TYPE_CHOOSES)
    return " ".join(parts)


def patient_facts(patient: Patient) -> list[tuple[str, str]]:
    """Return the given facts as (name, value) for a reader; the others are left out."""
    facts = {
        "age": f"{patient.age} years" if patient.age is not None else "",
        "sex": patient.sex or "",
        "place": patient.site or "",
        "there for": (patient.duration or "").replace("always", "as long as remembered"),
        "Fitzpatrick skin type": str(patient.skin_type or ""),
    }
    return [(name, value) for name, value in facts.items() if value]
