"""Kept cases and scans as plain values: what was kept, and what the patient agreed to and when.

Keeping, comparing and training are three consents.

The text that stands in a case is what was agreed to, word by word; what it allows is read from it.
A text that is changed here goes to the older ones, so that no case is read wider than it was given.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cache
from typing import Literal, Self

from skindx.casebook.case_names import NAMED_FACTS
from skindx.casebook.findings import (
    NO_FINDING,
    OPINION,
    ConfirmedFinding,
    EarlierFinding,
    Outside,
)
from skindx.diagnosis.case import FactsAdded, Patient, person_with
from skindx.diagnosis.case_actions import CaseAction, standing
from skindx.diagnosis.checklist_advice import Tier
from skindx.diagnosis.filing import Filing, NoteChange, RecordedDiagnosis
from skindx.diagnosis.record import Diagnosis
from skindx.imaging.photo_date import day_of
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.label_matches import match
from skindx.texts.catalogue import joined, languages, speaking, text, word

Purpose = Literal["keep", "compare", "train"]
PURPOSES: tuple[Purpose, ...] = ("keep", "compare", "train")

CASE_CONSENTS: dict[Purpose, str] = {
    "keep": (
        "The patient agrees that these photos and this answer are kept in this case book under a "
        "pseudonym; they may be deleted at any time."
    ),
    "compare": "The photos may be compared with earlier and later photos of the same place.",
    "train": (
        "Once a clinician has confirmed a diagnosis, the photos and that diagnosis may be used to "
        "train a model."
    ),
}
"""Sentences that a form shows one by one, in the language that is spoken; the text of a case joins
those that were agreed to."""

SCAN_CONSENTS: dict[Purpose, str] = {
    "keep": (
        "The patient agrees that a small copy of these photos, the lesions on them and this result "
        "are kept in this case book under a pseudonym; they may be deleted at any time."
    ),
    "compare": "This scan may be compared with earlier and later scans of the same view.",
}

_OLDER: dict[str, tuple[Purpose, ...]] = {
    "The patient agrees that these photos and this answer are kept in this case book under a "
    "pseudonym, are compared with later ones, and, once a clinician has confirmed a diagnosis, "
    "may be used to train this model. They may be deleted at any time.": PURPOSES,
    "The patient agrees that a small copy of these photos, the lesions on them and this result are "
    "kept in this case book under a pseudonym and are compared with later scans. They may be "
    "deleted at any time.": ("keep", "compare"),
}
"""Texts of older versions, each one consent to several purposes."""
_OLDER_COMPARE = (
    "They may be compared with earlier and later photos of the same place.",
    "They may be compared with earlier and later scans of the same view.",
    "Pueden compararse con fotos anteriores y posteriores del mismo lugar.",
    "Pueden compararse con escaneos anteriores y posteriores de la misma vista.",
)
"""Sentences of older versions that agree to comparing, word by word."""


def consent_text(consents: dict[Purpose, str], purposes: Collection[Purpose]) -> str:
    """Return the sentences of the purposes that were agreed to, in their order, as spoken."""
    return " ".join(word(sentence) for purpose, sentence in consents.items() if purpose in purposes)


def purposes_of(consent: str) -> frozenset[Purpose]:
    """Return what a consent covers; a text that is not known covers keeping alone."""
    if consent in _OLDER:
        return frozenset(_OLDER[consent])
    covered = {
        purpose
        for consents in (CASE_CONSENTS, SCAN_CONSENTS)
        for purpose, sentence in consents.items()
        if any(said in consent for said in _in_each_language(sentence))
    }
    if any(said in consent for said in _OLDER_COMPARE):
        covered.add("compare")
    return frozenset({"keep", *covered})


@cache
def _in_each_language(sentence: str) -> tuple[str, ...]:
    said = []
    for language in languages():
        with speaking(language):
            said.append(word(sentence))
    return tuple(said)


@dataclass(frozen=True, slots=True)
class ConsentEntry:
    """What a patient agreed to from one moment on."""

    consent: str
    """Word by word."""
    when: datetime
    who: str = ""
    """Login that wrote it down; "" in a case of an older version."""

    @property
    def purposes(self) -> frozenset[Purpose]:
        return purposes_of(self.consent)


@dataclass(frozen=True, slots=True)
class ConsentChange:
    """Purposes that a patient agreed to, or no longer agrees to, at one moment."""

    purposes: tuple[Purpose, ...]
    when: datetime
    who: str
    withdrawn: bool


def consent_changes(entries: Sequence[ConsentEntry]) -> Iterator[ConsentChange]:
    """Yield what changed from each entry to the next, oldest first; the first agrees to its own."""
    before: frozenset[Purpose] = frozenset()
    for entry in entries:
        for purposes, withdrawn in (
            (entry.purposes - before, False),
            (before - entry.purposes, True),
        ):
            if purposes:
                ordered = tuple(one for one in PURPOSES if one in purposes)
                yield ConsentChange(ordered, entry.when, entry.who, withdrawn)
        before = entry.purposes


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
    """When that was written down; of each purpose, `agreed` tells it."""
    diagnosis: Diagnosis
    confirmed: str
    """Class key that a clinician confirmed; "" until then, and for another diagnosis."""
    outside: Outside | None
    """A confirmed diagnosis that is no class of the model."""
    note: str
    version: int
    """Grows with each change; an edit names the version that it was made from."""
    photos: tuple[bytes, ...]
    confirmed_by: str = ""
    """How: one of CONFIRMED_BY; "" where nobody said, and in a case of an older version."""
    found: datetime | None = None
    """When a clinician wrote the diagnosis down; None: not known."""
    answered: datetime | None = None
    """When the answer was given; None: not known, and the case was kept soon after."""
    earlier: tuple[EarlierFinding, ...] = ()
    """Diagnoses that a clinician recorded before and that were replaced, oldest first."""
    found_by: str = ""
    """Login that recorded the diagnosis; "" where there is none, and of an older version."""
    consents: tuple[ConsentEntry, ...] = ()
    """What the patient agreed to from when on, oldest first; the last is what holds."""
    unrecorded: bool = False
    """An older version changed the case; what it may have replaced is not known."""
    clinician: str = ""
    """Name of the clinician whose diagnosis it is; "" where nobody gave it."""
    notes: tuple[NoteChange, ...] = ()
    """Each change of the note, oldest first."""
    added: tuple[FactsAdded, ...] = ()
    """Facts about the person that were recorded after the answer, oldest first."""
    actions: tuple[CaseAction, ...] = ()
    """What was done about the case, in the order in which it was written down."""
    features: tuple[bytes, ...] = field(default=(), repr=False)
    """Embedding of each photo as float16; empty in a case of an older version."""

    @property
    def person(self) -> Patient:
        """All that is known of the person, also what the answer did not know."""
        return person_with(self.diagnosis.patient, self.added)

    @property
    def facts_at_keeping(self) -> tuple[FactsAdded, ...]:
        """Those of `added` that the lesion's name gave when the case was kept."""
        named = {name: of(self.lesion) for name, of in NAMED_FACTS.items()}
        return tuple(
            one
            for one in self.added
            if one.when == self.taken and one.given.items() <= named.items()
        )

    @property
    def place(self) -> str:
        """The lesion."""
        return self.lesion

    def renamed(self, patient: str, lesion: str) -> Self:
        return replace(self, patient=patient, lesion=lesion)

    @property
    def finding(self) -> ConfirmedFinding:
        """What a clinician recorded."""
        return ConfirmedFinding(
            self.confirmed, self.note, self.outside, self.confirmed_by, self.found, self.found_by,
            self.earlier, self.clinician, self.notes,
        )  # fmt: skip

    @property
    def photographed(self) -> date | None:
        """The day on which its photos were taken, the first of them; None where nothing says it."""
        return first_day(photo.taken for photo in self.diagnosis.photos)

    @property
    def when(self) -> tuple[date, datetime]:
        """What orders the cases of a lesion, see `seen_on`."""
        return seen_on(self.photographed, self.taken)

    @property
    def reported(self) -> datetime:
        """The time that stands on its report, in local time: of the answer, or of keeping."""
        return (self.answered or self.taken).astimezone()

    @property
    def is_opinion(self) -> bool:
        """Whether the diagnosis is a clinical opinion, which confirms and trains nothing."""
        return self.confirmed_by == OPINION

    @property
    def is_confirmed(self) -> bool:
        """Whether the diagnosis is one of the model's classes and says what confirmed it."""
        return bool(self.confirmed and self.confirmed_by) and not self.is_opinion

    @property
    def purposes(self) -> frozenset[Purpose]:
        """What the patient agreed to: keeping, comparing, training."""
        return purposes_of(self.consent)

    def agreed(self, purpose: Purpose) -> datetime:
        """Return since when the patient has agreed to a purpose that holds."""
        since = self.consented
        for entry in reversed(self.consents):
            if purpose not in entry.purposes:
                break
            since = entry.when
        return since


def first_day(taken: Iterable[str]) -> date | None:
    """Return the first day of photos' dates; None where none is known."""
    return min((day for day in map(day_of, taken) if day), default=None)


def seen_on(photographed: date | None, kept: datetime) -> tuple[date, datetime]:
    """Return what orders the cases of a lesion: the day of the photos, else that of keeping."""
    return photographed or kept.date(), kept


def one_lesion_question(diagnosis: Diagnosis) -> str:
    """Return why a case may be of several lesions, before it is asked; "" for no reason."""
    several = [
        (number, len(photo.boxes))
        for number, photo in enumerate(diagnosis.photos, 1)
        if photo.boxes and len(photo.boxes) > 1
    ]
    count = len(diagnosis.photos)
    if several:
        return joined(*(text("keep_outlined", n=boxes, photo=photo) for photo, boxes in several))
    return text("keep_photos", n=count) if count > 1 else ""


def filing_of(case: KeptCase, taxonomy: Taxonomy, of_lesion: Iterable[KeptCase] = ()) -> Filing:
    """Return under what a kept answer is filed, with what clinicians recorded, now and before.

    `of_lesion` are all cases of its lesion, in the order of their photos.
    """
    known = {one.key: Outside(one.name, one.icd10) for one in taxonomy.classes}
    known |= {one.key: Outside(one.name, one.icd10) for one in case.diagnosis.candidates}

    def recorded(finding: ConfirmedFinding) -> RecordedDiagnosis | None:
        if not finding.is_given:
            return None
        key = finding.confirmed
        named = finding.outside or known.get(key) or Outside(key)
        code = _one_code(named) if key else named.icd10
        opinion = finding.confirmed_by == OPINION
        holds = None if key else taxonomy.recognise(named.name)
        return RecordedDiagnosis(
            named.name,
            code,
            confirmed_by="" if opinion else finding.confirmed_by,
            opinion=opinion,
            who=finding.by or case.owner,
            when=finding.found.astimezone() if finding.found else None,
            key=key,
            clinician=finding.clinician,
            within=holds if holds and holds.icd10 != named.icd10 else None,
        )

    earlier = []
    for one in case.earlier:
        ended, who, why = one.replaced.astimezone(), one.replaced_by, one.reason
        if before := recorded(one.finding):
            earlier.append(replace(before, replaced=ended, replaced_by=who, reason=why))
    others = [one for one in of_lesion if one.id != case.id]
    elsewhere = case.finding.outweighed_by(one.finding for one in others)
    found = elsewhere.found if elsewhere.is_confirmed else None
    done = standing(action for one in others for action in one.actions)
    return Filing(
        case.patient,
        case.lesion,
        kept=True,
        undated=case.answered is None,
        recorded=recorded(case.finding),
        elsewhere=recorded(elsewhere),
        is_outdated=bool(found and found >= case.taken),
        elsewhere_done=done[-1].words if done and not standing(case.actions) else "",
        earlier=tuple(earlier),
        unrecorded=case.unrecorded,
        note=case.note,
        notes=tuple(replace(one, when=one.when.astimezone()) for one in case.notes),
        version=case.version,
        added=tuple(one.in_local_time for one in case.added),
        at_keeping=tuple(one.in_local_time for one in case.facts_at_keeping),
        actions=case.actions,
    )


def _one_code(named: Outside) -> str:
    """Return the code of a class; "" for one of several diseases, whose names have other codes."""
    found = map(match, named.name.split(" or "))
    codes = {one.skin_class.icd10 for one in found if one}
    return named.icd10 if len(codes) < 2 else ""


@dataclass(frozen=True, slots=True)
class PersonSeen:
    """What one case tells of the person, and of which day."""

    facts: Patient
    day: date
    """The day of its photos, else that of keeping."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a list says of a case."""

    urgency: Tier | None = None
    """What its answer advises, with what was answered to questions."""
    finding: ConfirmedFinding = NO_FINDING
    """Without note and earlier entries."""
    photographed: date | None = None
    """The day of its photos; None where nothing says it."""
    lapsed: EarlierFinding | None = None
    """The last confirmed diagnosis, where it no longer stands."""
    was_replaced: bool = False
    """Whether another one took its place, else it was taken back."""
    actions: tuple[CaseAction, ...] = ()
    """What was done about it, in the order of the days; without what was struck out."""
    had_entries: bool = False
    """Whether anything was written down, struck out or not."""
    compares: bool = True
    """Whether the patient agrees to comparing it, as far as it can be read."""


@dataclass(frozen=True, slots=True)
class LesionHistory:
    """One lesion of a patient over time."""

    patient: str
    lesion: str
    cases: int
    last: datetime
    """When its latest case was kept: that of the latest photo, see `seen_on`."""
    photographed: date | None = None
    """The day of the photos of that case; None where nothing says it."""
    urgency: Tier | None = None
    """What the answer of that case advises; None: it cannot be read."""
    findings: tuple[ConfirmedFinding, ...] = ()
    """What clinicians recorded in its cases, each once, that of the latest case first."""
    is_given: bool = False
    """Whether that case has a diagnosis."""
    is_confirmed: bool = False
    """Whether something confirmed it."""
    told: tuple[tuple[datetime, Told], ...] = ()
    """When each of its cases was kept and what is told of it, in the order of the photos."""

    @property
    def is_comparable(self) -> bool:
        """Whether the patient agrees that two of its cases are compared."""
        return self.cases - sum(not one.compares for _, one in self.told) > 1

    @property
    def lapsed(self) -> list[Told]:
        """Its cases whose last confirmed diagnosis no longer stands, the latest one first."""
        return [one for _, one in reversed(self.told) if one.lapsed]

    @property
    def differ(self) -> bool:
        """Whether its cases have diagnoses that name different diseases, whatever confirms them."""
        named = {one.confirmed or (one.outside and one.outside.name) for one in self.findings}
        return len(named) > 1


FILES = ("scan.json", "lesions.parquet", "scan.html")
"""What a comparison and a reader need of a scan's folder, beside its overviews and crops."""
FOLDERS = ("overviews", "crops")
LIST = "list.html"
"""The part of the page that shows the first lesions; a scan of the command line has none."""


@dataclass(frozen=True, slots=True)
class KeptScan:
    """One scan of a case book; its files are decrypted when they are asked for."""

    id: str
    owner: str
    patient: str
    """A pseudonym."""
    view: str
    """Such as: back, standing. Scans of one view can be compared."""
    taken: datetime
    lesions: int
    photos: int
    consent: str
    consented: datetime

    @property
    def place(self) -> str:
        """The view."""
        return self.view

    def renamed(self, patient: str, view: str) -> Self:
        return replace(self, patient=patient, view=view)
