"""The intake: every fact about a person that may be given with photos, declared once.

A fact has its texts here and its type in `Patient` (case.py). The page, the command line, the HTTP
interface, tables of photos, reports, FHIR and the export of kept cases derive from both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from skindx.core.seven_points import ITEM_OF, QUESTIONS
from skindx.texts.catalogue import word

FactUse = Literal["learned", "thresholds", "checklist", "printed"]
"""What an answer does with a fact: a bundle may have learned from it, it selects the thresholds
that were fitted for it, it counts in the weighted 7-point checklist, or it is printed alone."""

OPTION_USES: dict[FactUse, str] = {
    "learned": "changes answers if the bundle learned from it",
    "thresholds": "selects the thresholds fitted for it",
    "checklist": "can only raise the urgency, by the weighted 7-point checklist",
    "printed": "printed in the report, changes no answer",
}
GENITALS = (
    "Take no photo of a child's genitals: let a clinician look. Of an adult, show the place alone, "
    "with their agreement. The photo is used for this answer alone, deleted from the server with "
    "it, and never logged or sent elsewhere."
)


@dataclass(frozen=True)
class IntakeField:
    """One fact about a person, as each part of skindx names it and its values."""

    question: str
    """Its label on the page."""
    meaning: str
    """What it is, in a sentence for clients of the HTTP interface."""
    option: str
    """The same with its values, for the command line."""
    fhir: str
    """The text of its component in a FHIR observation."""
    report: str
    """Its name in a report; empty: the text of another fact holds it."""
    use: FactUse = "printed"
    trains: bool = True
    """An export of cases whose patients agreed to training holds it."""
    noun: str = ""
    """Its name within a sentence; empty: as the fact is called."""
    loinc: str = ""
    """Its code in LOINC, for FHIR; empty: it has none. Another code system, or codes of its values,
    need clinic/fhir_observations.py too."""
    number: bool = False
    """It is a whole number."""
    unit: str = ""
    """Unit of a number that has one."""
    words: Mapping[Any, str] = field(default_factory=dict)
    """Value -> what the page calls it; the others are called as they are stored."""
    reported: Mapping[Any, str] = field(default_factory=dict)
    """Value -> what a report calls it, likewise."""
    not_offered: tuple[Any, ...] = ()
    """Values that the page does not offer, since a person knows better."""
    notes: Mapping[Any, str] = field(default_factory=dict)
    """Value -> what stands below the fields as soon as it is chosen."""

    def word(self, value: Any) -> str:
        """Return what the page calls a value."""
        return word(self.words.get(value) or str(value).capitalize())


_ASKED = {
    "pigmented": ("pigment", "Whether it is brown, black or blue", ""),
    "grew": ("growth", "Whether it has grown or changed in size", "grows"),
    "irregular_shape": ("irregular shape", "Whether its shape is irregular", "is irregular"),
    "irregular_colour": ("irregular colour", "Whether its colour is irregular", "varies in colour"),
    "large": ("7 mm or more", "Whether its largest diameter is 7 mm or more", "is 7 mm or more"),
    "inflamed": ("inflammation", "Whether it is inflamed", "is inflamed"),
    "bleeds": ("bleeding", "Whether it bleeds, oozes or crusts", "bleeds"),
    "itches": ("itch", "Whether it itches", "itches"),
    "hurts": ("pain", "Whether it hurts", "hurts"),
    "new": ("new", "Whether it is new", "is new"),
    "changed": ("other change", "Whether it has changed in another way", "changes"),
    "raised": ("raised", "Whether it is raised", "is raised"),
}
"""Question -> its name in a report, its meaning, and what a yes says, as `words.yaml` translates
it; the catalogue has what the page asks."""
YES = {question: verb for question, (*_, verb) in _ASKED.items() if verb}
"""Question -> what a yes says of the lesion."""


def _question(name: str) -> IntakeField:
    noun, meaning, _ = _ASKED[name]
    return IntakeField(
        question=noun,
        meaning=f"{meaning}.",
        option=f"{meaning}: yes, no or unknown",
        fhir=noun,
        report=noun,
        use="checklist" if name in {"pigmented", *ITEM_OF} else "printed",
        noun=noun,
    )


INTAKE: dict[str, IntakeField] = {
    "age": IntakeField(
        question="Age",
        meaning="Age in years.",
        option="Age in years",
        fhir="age",
        report="age",
        use="learned",
        loinc="30525-0",
        number=True,
        unit="years",
    ),
    "sex": IntakeField(
        question="Sex",
        meaning="Sex of the person.",
        option="female, male or other",
        fhir="sex",
        report="sex",
        use="learned",
    ),
    "site": IntakeField(
        question="Where on the body",
        meaning="Where on the body the lesion is.",
        option="Place on the body: scalp, face, ear, lip, neck, chest, abdomen, back, trunk, arm, "
        "hand, palm, nail, genitals, leg, foot, sole, palm or sole",
        fhir="place on the body",
        report="place",
        use="learned",
        noun="place",
        not_offered=("palm or sole",),
        notes={"genitals": GENITALS},
    ),
    "laterality": IntakeField(
        question="Side of the body",
        meaning="On which side of the person's body it is.",
        option="Its side of the body: left, right or midline",
        fhir="side of the body",
        report="",
        noun="side",
    ),
    "duration": IntakeField(
        question="Since when",
        meaning="How long the lesion has been there.",
        option="How long it has been there: days, weeks, months, years or always",
        fhir="duration",
        report="there for",
        words={"always": "Since birth or childhood"},
        reported={"always": "as long as remembered"},
    ),
    "skin_type": IntakeField(
        question="Skin type",
        meaning="Fitzpatrick skin type.",
        option="Fitzpatrick skin type, 1 to 6",
        fhir="Fitzpatrick skin type",
        report="Fitzpatrick skin type",
        use="thresholds",
        noun="skin type",
        number=True,
        reported=dict(zip(range(1, 7), ("I", "II", "III", "IV", "V", "VI"), strict=True)),
    ),
    **{name: _question(name) for name in QUESTIONS},
}
"""Fact -> its texts, in the order in which they are asked for and printed."""
