"""A case: one to three photos of one place on the skin, and optional facts about the person."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import zip_longest
from typing import Annotated, Any, Literal, TypedDict, get_args

from pydantic import BeforeValidator, Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.seven_points import QUESTIONS, Answer, SevenPoints, seven_points
from skindx.diagnosis.intake import INTAKE
from skindx.imaging.dicom_facts import DicomFacts
from skindx.imaging.photo_gates import Kind
from skindx.models.metadata_head import Facts
from skindx.taxonomy.lexicon import Laterality, Site, site_of
from skindx.texts.catalogue import joined, spoken, text, word

MAX_PHOTOS = 3

Sex = Literal["female", "male", "other"]
Duration = Literal["days", "weeks", "months", "years", "always"]
SkinType = Literal[1, 2, 3, 4, 5, 6]


def _plain(place: Any) -> Any:
    return site_of(place) if isinstance(place, str) else place


Asked = Annotated[Answer | None, Field(exclude_if=lambda answer: answer is None)]
"""What a person or a clinician answers, never what a photo shows; None: not asked."""


class Patient(Settings):
    """Information given about the person; all of it is optional and none is guessed.

    `INTAKE` (intake.py) has the texts of each fact.

    The networks see photos alone. Age, sex and place change an answer of a bundle that learned how;
    skin type chooses the conformal threshold where the calibration images include it. All of it
    is printed in the report for the clinician.
    """

    age: int | None = Field(None, ge=0, le=120)
    """Years."""
    sex: Sex | None = None
    site: Annotated[Site | None, BeforeValidator(_plain)] = None
    laterality: Laterality | None = Field(None, exclude_if=lambda side: side is None)
    duration: Duration | None = None
    """How long the change has been there."""
    skin_type: SkinType | None = None
    """Fitzpatrick 1..6."""
    pigmented: Asked = None
    grew: Asked = None
    irregular_shape: Asked = None
    irregular_colour: Asked = None
    large: Asked = None
    inflamed: Asked = None
    bleeds: Asked = None
    itches: Asked = None
    hurts: Asked = None
    new: Asked = None
    changed: Asked = None
    raised: Asked = None
    from_file: tuple[Literal["age", "sex", "site", "laterality"], ...] = ()
    """Facts that the header of a DICOM photo gave, since nobody else did."""

    @property
    def given(self) -> dict[str, Any]:
        """The facts that are given, by name, in the order of the intake."""
        facts = {name: getattr(self, name) for name in INTAKE}
        return {name: value for name, value in facts.items() if value is not None}

    @property
    def facts(self) -> Facts:
        """What an answer may use."""
        return Facts(self.age, self.sex or "", self.site or "")

    @property
    def answers(self) -> dict[str, str]:
        """What is known by the questions: yes and no, by question."""
        given = {one: getattr(self, one) for one in QUESTIONS}
        return {one: answer for one, answer in given.items() if answer in ("yes", "no")}

    @property
    def seven_points(self) -> SevenPoints:
        return seven_points(self.answers, self.site)

    @property
    def place(self) -> str:
        """Where on the body and on which side, in words; "" where neither is given."""
        side = {"left": "left side", "right": "right side"}.get(self.laterality or "")
        return ", ".join(word(one) for one in (self.site, side or self.laterality) if one)


class PersonFacts(TypedDict, total=False):
    """The facts of `Patient` as a program gives them: plain words and whole numbers."""

    age: int | None
    sex: str | None
    site: str | None
    laterality: str | None
    duration: str | None
    skin_type: int | None
    pigmented: str | None
    grew: str | None
    irregular_shape: str | None
    irregular_colour: str | None
    large: str | None
    inflamed: str | None
    bleeds: str | None
    itches: str | None
    hurts: str | None
    new: str | None
    changed: str | None
    raised: str | None


def values_of(fact: str) -> tuple[Any, ...]:
    """Return the values that a fact may have; empty for a number within limits."""
    return _literals(Patient.model_fields[fact].annotation)


def limits_of(fact: str) -> tuple[int, int]:
    """Return the least and the largest value of a whole number without named values."""
    rules = Patient.model_fields[fact].metadata
    least, largest = (
        next(getattr(rule, bound) for rule in rules if hasattr(rule, bound))
        for bound in ("ge", "le")
    )
    return least, largest


def _literals(kind: Any) -> tuple[Any, ...]:
    values: list[Any] = []
    for part in get_args(kind):
        inner = _literals(part)
        values += inner or ([] if part is type(None) or isinstance(part, type) else [part])
    return tuple(values)


@dataclass(frozen=True)
class Case:
    """Photos of one lesion or region, as files' bytes, and who they are of."""

    photos: tuple[bytes, ...]
    patient: Patient = field(default_factory=Patient)
    language: str = field(default_factory=spoken)
    """That of its answer: the language spoken where the case is made."""
    modality: Kind | Literal[""] = ""
    """How a person says that the photos were taken; "": the check alone decides."""

    def __post_init__(self) -> None:
        """Raise UserError for no photo, more than three, one given twice, an unknown modality."""
        if self.modality and self.modality not in get_args(Kind):
            raise UserError(
                f"the modality {self.modality[:20]!r} is not known; give dermoscopic (through a "
                "dermatoscope) or clinical (without one)."
            )
        if not 1 <= len(self.photos) <= MAX_PHOTOS:
            raise UserError(
                f"the case has {len(self.photos)} photos; give 1 to {MAX_PHOTOS} photos of one "
                "place on the skin."
            )
        for number, photo in enumerate(self.photos, 1):
            if (first := self.photos.index(photo) + 1) != number:
                raise UserError(
                    f"photos {first} and {number} are the same file; give each photo once."
                )


def with_file_facts(case: Case, headers: Sequence[DicomFacts]) -> Case:
    """Return a case whose missing facts come from the headers of its photos, the first that says.

    What a person gave stays. Raises UserError where the files name different patients.
    """
    if len({one.identity.patient_id for one in headers if one.identity.patient_id}) > 1:
        raise UserError(text("refused_patients"))
    given = case.patient.model_dump()
    read = {name: one.patient[name] for one in reversed(headers) for name in one.patient}
    new = {name: value for name, value in read.items() if given.get(name) is None}
    if not new:
        return case
    patient = Patient.parse(given | new | {"from_file": sorted(new)}, "the file", expand=False)
    return replace(case, patient=patient)


def how_facts_count(fields: Collection[str]) -> str:
    """Return what the bundle does with age, sex, place, side and duration, above their fields."""
    if not fields:
        return joined(text("facts_change_nothing"), text("facts_printed"))
    changed = text("facts_may_change", fields=nouns(fields))
    return joined(text("facts_optional"), changed, text("facts_rest"))


def skin_type_chooses(*, chooses: bool = True) -> str:
    """Return what a skin type does, in sentences; `chooses`: a threshold of its own is there."""
    key = "skin_type_chooses" if chooses else "skin_type_unused"
    return joined(text(key), text("skin_type_tested"))


def nouns(fields: Collection[str]) -> list[str]:
    """Return the names of some facts within a sentence."""
    return [word(INTAKE[field].noun or field) for field in fields]


def use_of_facts(patient: Patient, used: Collection[str] = (), *, chooses: bool = True) -> str:
    """Return which given facts changed nothing, and what a skin type did; "" where none is given.

    `used` are the fields that changed probabilities; `chooses`: the skin type chose a threshold.
    """
    asked = {"skin_type", *QUESTIONS}  # whose sentences stand elsewhere
    given = [name for name in patient.given if name not in asked]
    unused = [name for name in given if name not in used]
    read = Patient(**{name: getattr(patient, name) for name in patient.from_file})
    return joined(
        text("facts_unused", fields=nouns(unused)) if unused else "",
        text("facts_photos_alone") if unused and not used else "",
        text("facts_read", facts=facts_list(read)) if patient.from_file else "",
        skin_type_chooses(chooses=chooses) if patient.skin_type is not None else "",
    )


def facts_list(patient: Patient) -> list[str]:
    """Return the given facts with their values, for a list within a sentence."""
    return [text("fact", name=name, value=value) for name, value in patient_facts(patient)]


_ANSWERED: dict[Answer, str] = {
    "yes": "record_answers_yes",
    "no": "record_answers_no",
    "unknown": "record_answers_unknown",
}


def answers_words(patient: Patient) -> list[str]:
    """Return what was answered with yes, with no and as unknown, in a sentence for each."""
    said = []
    for answer, key in _ANSWERED.items():
        asked = [INTAKE[one].report for one in QUESTIONS if getattr(patient, one) == answer]
        if asked:
            said.append(text(key, facts=[word(name) for name in asked]))
    return said


def patient_facts(patient: Patient) -> list[tuple[str, str]]:
    """Return the given facts as (name, value) for a reader; the others are left out."""
    facts = []
    for name, declared in INTAKE.items():
        value = patient.place if name == "site" else getattr(patient, name)
        if declared.report and value not in (None, ""):
            shown = word(declared.reported.get(value, str(value)))
            facts.append((word(declared.report), f"{shown} {word(declared.unit)}".strip()))
    return facts


def with_facts(photos: Iterable[Any], facts: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each photo with its facts. Raises UserError where one of both ends first."""
    ended = object()
    for pair in zip_longest(photos, facts, fillvalue=ended):
        if any(one is ended for one in pair):
            raise UserError(
                "the number of facts differs from the number of photos; give one fact for each "
                "photo."
            )
        yield pair


@dataclass(frozen=True)
class FactsAdded:
    """Facts about the person that were recorded after the answer, which did not know them."""

    facts: Patient
    """Those that were set; None takes back one that was added before."""
    when: datetime
    by: str = ""
    """Login that did so; "" where nobody logs in."""

    @property
    def given(self) -> dict[str, Any]:
        """The facts that were set, by name."""
        return self.facts.model_dump(exclude_unset=True)

    @property
    def in_local_time(self) -> "FactsAdded":
        """The same with the time as clocks here show it."""
        return replace(self, when=self.when.astimezone())


def person_with(patient: Patient, added: Iterable[FactsAdded]) -> Patient:
    """Return all that is known of a person, by the answer and later."""
    for one in added:
        patient = patient.model_copy(update=one.given)
    return patient
