"""The intake form, and the case that is made of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from skindx.core.errors import UserError
from skindx.data.origin import ImageOrigin
from skindx.diagnosis.case import (
    CHANGES_NOTHING,
    MAX_PHOTOS,
    SITES,
    SKIN_TYPE_CHOOSES,
    Case,
    Duration,
    Patient,
    Sex,
)
from skindx.diagnosis.photo_checks import MAX_BYTES
from skindx.ui.html import render
from skindx.ui.page.uploads import take_uploads


class SkinTypeWords(NamedTuple):
    """One of Fitzpatrick's six types (1988) in plain words; `swatch` is only an ornament."""

    number: int
    roman: str
    sun: str
    looks: str
    swatch: str


SKIN_TYPES = (
    SkinTypeWords(1, "I", "Always burns, never tans", "very fair, often with freckles", "#f6ddcf"),
    SkinTypeWords(2, "II", "Burns easily, tans a little", "fair", "#edc6ab"),
    SkinTypeWords(3, "III", "Sometimes burns, tans slowly", "light brown", "#dba882"),
    SkinTypeWords(4, "IV", "Rarely burns, tans well", "olive or brown", "#b57f55"),
    SkinTypeWords(5, "V", "Very rarely burns, tans deeply", "dark brown", "#815338"),
    SkinTypeWords(6, "VI", "Hardly ever burns", "deep brown to black", "#452c20"),
)
DURATIONS: dict[Duration, str] = {
    "days": "Days",
    "weeks": "Weeks",
    "months": "Months",
    "years": "Years",
    "always": "Since birth or childhood",
}


def intake_html(least_side: int, images: ImageOrigin | None = None, *, crop: float = 1.0) -> str:
    """Return the form; `intake.js` brings it to life. A photo needs so many pixels on each side.

    `images` are those that the model learned from: the form says which photos it is for. `crop` is
    the share of the shorter side that the networks see; the form draws that square.
    """
    return render(
        "intake.html.jinja",
        sexes=get_args(Sex),
        sites=SITES,
        durations=DURATIONS,
        skin_types=SKIN_TYPES,
        changes_nothing=CHANGES_NOTHING,
        skin_type_chooses=SKIN_TYPE_CHOOSES,
        most=MAX_PHOTOS,
        max_bytes=MAX_BYTES,
        least_side=least_side,
        crop=crop,
        expects=images.expects if images else "",
    )


def case_of(sent: object, folder: Path) -> Case:
    """Return the case that the form sent; its files are deleted from `folder` in any case.

    Raises UserError for what no form of ours sends: the page is open to anybody.
    """
    values = sent if isinstance(sent, Mapping) else {}
    paths = values.get("photos")
    photos = take_uploads(paths if isinstance(paths, list) else [], folder)
    return Case(photos, patient_of(values.get("patient")))


def patient_of(sent: object) -> Patient:
    """Return the facts about the person; empty fields are left out. Raises UserError."""
    facts: dict[str, Any] = {
        key: value for key, value in (sent.items() if isinstance(sent, Mapping) else ()) if value
    }
    for key in ("age", "skin_type"):
        if key in facts:
            try:
                facts[key] = int(str(facts[key]))
            except ValueError:
                raise UserError(
                    f"{key.replace('_', ' ')} {str(facts[key])[:20]!r} is no whole number; "
                    "correct it or leave it empty."
                ) from None
    if not 0 <= facts.get("age", 0) <= 120:
        raise UserError(
            f"the age {facts['age']} is out of range; give 0 to 120, or leave it empty."
        )
    return Patient.parse(facts, origin="the form", expand=False)
