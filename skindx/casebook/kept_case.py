"""Kept cases and scans as plain values: what was kept, what it rests on, what was confirmed.

Keeping, comparing and training are three consents.

The text that stands in a case is what was agreed to, word by word; what it allows is read from it.
A text that is changed here goes to the older ones, so that no case is read wider than it was given.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Literal, Self

from skindx.core.errors import UserError
from skindx.data.sources.columns import CONFIRMATIONS
from skindx.diagnosis.filing import Filing, RecordedDiagnosis
from skindx.diagnosis.record import Diagnosis
from skindx.imaging.photo_date import day_of
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.label_matches import match

Purpose = Literal["keep", "compare", "train"]
PURPOSES: tuple[Purpose, ...] = ("keep", "compare", "train")

CASE_CONSENTS: dict[Purpose, str] = {
    "keep": (
        "The patient agrees that these photos and this answer are kept in this case book under a "
        "pseudonym; they may be deleted at any time."
    ),
    "compare": "They may be compared with earlier and later photos of the same place.",
    "train": (
        "Once a clinician has confirmed a diagnosis, the photos and that diagnosis may be used to "
        "train a model."
    ),
}
"""Sentences that a form shows one by one; the text of a case joins those that were agreed to."""

SCAN_CONSENTS: dict[Purpose, str] = {
    "keep": (
        "The patient agrees that a small copy of these photos, the lesions on them and this result "
        "are kept in this case book under a pseudonym; they may be deleted at any time."
    ),
    "compare": "They may be compared with earlier and later scans of the same view.",
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


def consent_text(consents: dict[Purpose, str], purposes: Collection[Purpose]) -> str:
    """Return the sentences of the purposes that were agreed to, in their order."""
    return " ".join(text for purpose, text in consents.items() if purpose in purposes)


def purposes_of(text: str) -> frozenset[Purpose]:
    """Return what a consent covers; a text that is not known covers keeping alone."""
    if text in _OLDER:
        return frozenset(_OLDER[text])
    covered = {
        purpose
        for consents in (CASE_CONSENTS, SCAN_CONSENTS)
        for purpose, sentence in consents.items()
        if sentence in text
    }
    return frozenset({"keep", *covered})


OPINION = "clinical opinion"
CONFIRMED_BY = (*CONFIRMATIONS, OPINION)
"""How a diagnosis was made: what confirms it, as a dataset names it, and what does not."""

LONGEST_NOTE = 4000
LONGEST_DIAGNOSIS = 200
_ICD10 = re.compile(r"[A-Z]\d[0-9A-Z](\.[0-9A-Z]{1,4})?")


@dataclass(frozen=True, slots=True)
class Outside:
    """A confirmed diagnosis that is no class of the model."""

    name: str
    icd10: str = ""
    """ICD-10 code with its dot; "" where none was given."""

    @property
    def words(self) -> str:
        return f"{self.name} ({self.icd10})" if self.icd10 else self.name


@dataclass(frozen=True, slots=True)
class ConfirmedFinding:
    """The confirmed diagnosis and the note on it."""

    confirmed: str = ""
    """Key of the class; "" for none, and for a diagnosis outside the classes."""
    note: str = ""
    outside: Outside | None = None
    confirmed_by: str = ""
    """One of CONFIRMED_BY; "" where nobody said."""
    found: datetime | None = None
    """When the diagnosis was written down; None: there is none, or an older version wrote it."""

    def dated(self, before: "ConfirmedFinding", now: datetime) -> "ConfirmedFinding":
        """Return the finding with its time: that of `before` where only the note is new."""
        if not (self.confirmed or self.outside):
            return self
        same = replace(self, note=before.note, found=before.found) == before
        return replace(self, found=before.found if same else now)


def finding_of(
    label: str, note: str, known: Sequence[str], outside: Outside | None = None, how: str = ""
) -> ConfirmedFinding:
    """Return a finding; "" takes the diagnosis back. Raises UserError for what cannot be kept.

    `known` are the keys of the model's classes, `how` is one of CONFIRMED_BY or "".
    """
    if how and how not in CONFIRMED_BY:
        raise UserError(
            f"a diagnosis cannot be confirmed by {how[:40]!r}; choose {', '.join(CONFIRMED_BY)}, "
            "or leave it empty."
        )
    if how and not (label or outside):
        raise UserError(
            f"no diagnosis is named that was confirmed by {how}; choose one, or clear how it was "
            "confirmed."
        )
    if label and label not in known:
        raise UserError(
            f"{label[:40]!r} is no class of this bundle; choose one of the list, or write it as a "
            "diagnosis outside of the model's classes."
        )
    if label and outside:
        raise UserError(
            "choose a class of the model or write another diagnosis, not both; clear one of them."
        )
    if len(note) > LONGEST_NOTE:
        raise UserError(f"the note has {len(note)} characters; use at most {LONGEST_NOTE}.")
    return ConfirmedFinding(label, note.strip(), outside, how)


def outside_of(text: str, icd10: str, taxonomy: Taxonomy) -> tuple[str, Outside | None]:
    """Return what a free text and a code mean: the key of one of the model's classes, or another.

    Both empty mean nothing: ("", None). A text is looked up in the shipped taxonomies and the
    lexicon, which give the code where none was written. Raises UserError.
    """
    name, code = " ".join(text.split()), icd10.strip().upper()
    if code and not _ICD10.fullmatch(code):
        raise UserError(
            f"{icd10.strip()[:20]!r} is no ICD-10 code; write it as in C44.3, or leave it empty."
        )
    if len(name) > LONGEST_DIAGNOSIS or not name.isprintable():
        raise UserError(
            f"a diagnosis has at most {LONGEST_DIAGNOSIS} characters that can be seen; shorten it."
        )
    if not name and not code:
        return "", None
    known = match(name or code)
    class_ = taxonomy.recognise(name) if name else None
    if class_ and (not code or code == class_.icd10):
        return class_.key, None
    if _ICD10.fullmatch(name.upper()):
        code = code or name.upper()
        name = known.skin_class.name if known else name.upper()
    if not name:
        name = known.skin_class.name if known else code
    return "", Outside(name, code or (known.skin_class.icd10 if known else ""))


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
    confirmed_by: str = ""
    """How: one of CONFIRMED_BY; "" where nobody said, and in a case of an older version."""
    found: datetime | None = None
    """When a clinician wrote the diagnosis down; None: not known."""

    @property
    def place(self) -> str:
        """The lesion."""
        return self.lesion

    def renamed(self, patient: str, lesion: str) -> Self:
        return replace(self, patient=patient, lesion=lesion)

    @property
    def photographed(self) -> date | None:
        """The day on which its photos were taken, the first of them; None where nothing says it."""
        days = [day_of(photo.taken) for photo in self.diagnosis.photos]
        return min((day for day in days if day), default=None)

    @property
    def is_opinion(self) -> bool:
        """Whether the diagnosis is a clinical opinion, which confirms and trains nothing."""
        return self.confirmed_by == OPINION

    @property
    def purposes(self) -> frozenset[Purpose]:
        """What the patient agreed to: keeping, comparing, training."""
        return purposes_of(self.consent)


def one_lesion_question(diagnosis: Diagnosis) -> str:
    """Return why a case may be of several lesions, before it is asked; "" for no reason."""
    several = [
        (number, len(photo.boxes))
        for number, photo in enumerate(diagnosis.photos, 1)
        if photo.boxes and len(photo.boxes) > 1
    ]
    count = len(diagnosis.photos)
    if several:
        which = [f"{boxes} lesions in photo {number}" for number, boxes in several]
        return f"The detector outlined {' and '.join(which)}."
    return f"This case has {count} photos." if count > 1 else ""


def filing_of(case: KeptCase, taxonomy: Taxonomy) -> Filing:
    """Return under what a kept answer is filed, with the diagnosis that a clinician recorded."""
    recorded = None
    if case.confirmed or case.outside:
        key = case.confirmed
        known = {one.key: Outside(one.name, one.icd10) for one in taxonomy.classes}
        known |= {one.key: Outside(one.name, one.icd10) for one in case.diagnosis.candidates}
        named = case.outside or known.get(key) or Outside(key)
        opinion = case.is_opinion
        recorded = RecordedDiagnosis(
            named.name,
            named.icd10,
            confirmed_by="" if opinion else case.confirmed_by,
            opinion=opinion,
            who=case.owner,
            when=case.found.astimezone() if case.found else None,
        )
    return Filing(case.patient, case.lesion, kept=True, recorded=recorded)


@dataclass(frozen=True, slots=True)
class LesionHistory:
    """One lesion of a patient over time."""

    patient: str
    lesion: str
    cases: int
    last: datetime


FILES = ("scan.json", "lesions.parquet", "scan.html")
"""Of a scan's folder, beside its overviews and crops: what a comparison and a reader need."""
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
