"""What a clinician recorded of a kept case: the diagnosis, what it rests on, and what stood before.

A correction keeps the entry that it replaces. The note is not among the earlier entries, so that
what tells who the patient is can be taken out of it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from skindx.casebook.case_names import LONGEST_NAME
from skindx.core.errors import UserError
from skindx.data.sources.columns import CONFIRMATIONS
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.label_matches import match
from skindx.texts.catalogue import text

OPINION = "clinical opinion"
CONFIRMED_BY = (*CONFIRMATIONS, OPINION)
"""How a diagnosis was made: what confirms it, as a dataset names it, and what does not."""

LONGEST_NOTE = 4000
LONGEST_DIAGNOSIS = 200
_ICD10 = re.compile(
    r"[A-Z]\d\d(?:\.\d{1,4})?"  # ICD-10 of the WHO, and most of ICD-10-CM
    r"|(?:C4A|C7[AB]|D3A|I1A|M1A|O9A|Z3A)(?:\.[0-9X]{1,4})?|C8[1-8]\.\d[AB]|D75\.A|H0[12]\.\d\d[ABC]"
    r"|[EHMORST-Y]\d\d\.[0-9X]{1,3}|[EHMORST-Y]\d\d\.[0-9X]{3}[0-9A-HJKMNP-S]"  # injuries
)
"""The forms of codes that exist; letters behind the dot are of ICD-10-CM, in a few chapters."""


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
    by: str = ""
    """Login that wrote it down; "" in a case of an older version."""
    earlier: tuple["EarlierFinding", ...] = ()
    """What stood here before, oldest first."""
    clinician: str = ""
    """Name of the clinician whose diagnosis it is; "" where nobody gave it."""
    notes: tuple["NoteChange", ...] = ()
    """When the note was changed and by whom, oldest first; no older text is kept."""

    @property
    def is_given(self) -> bool:
        """Whether there is a diagnosis."""
        return bool(self.confirmed or self.outside)

    @property
    def is_confirmed(self) -> bool:
        """Whether something confirmed the diagnosis, which an opinion does not."""
        return self.is_given and self.confirmed_by not in ("", OPINION)

    def written(self, before: "ConfirmedFinding", now: datetime, by: str) -> "ConfirmedFinding":
        """Return the finding as it follows another one, which joins the earlier ones.

        Where only the note is new, time, login and earlier entries are those of `before`.
        """
        noted = before.notes
        if self.note != before.note:
            noted += (NoteChange(now, by),)
        kept = replace(self, found=before.found, by=before.by, earlier=before.earlier, notes=noted)
        if replace(kept, note=before.note, notes=before.notes) == before:
            return kept
        earlier = before.earlier
        if before.is_given:
            earlier += (EarlierFinding(before.alone, now, by),)
        if not self.is_given:
            return replace(self, earlier=earlier, notes=noted)
        return replace(self, found=now, by=by, earlier=earlier, notes=noted)

    @property
    def alone(self) -> "ConfirmedFinding":
        """The diagnosis without the note and without what stood before."""
        return replace(self, note="", earlier=(), notes=())


NO_FINDING = ConfirmedFinding()


@dataclass(frozen=True, slots=True)
class NoteChange:
    """That a note was written, changed or taken out."""

    when: datetime
    by: str
    """Login that did so."""


@dataclass(frozen=True, slots=True)
class EarlierFinding:
    """A diagnosis that another one replaced, or that was taken back."""

    finding: ConfirmedFinding
    """The diagnosis without its note."""
    replaced: datetime
    replaced_by: str
    """Login that replaced it or took it back."""


def finding_of(
    label: str,
    note: str,
    known: Sequence[str],
    outside: Outside | None = None,
    how: str = "",
    *,
    clinician: str = "",
) -> ConfirmedFinding:
    """Return a finding; "" takes the diagnosis back. Raises UserError for what cannot be kept.

    `known` are the keys of the model's classes, `how` is one of CONFIRMED_BY or "".
    """
    if how and how not in CONFIRMED_BY:
        raise UserError(
            f"{how[:40]!r} is not a way to confirm a diagnosis; choose one of "
            f"{', '.join(CONFIRMED_BY)}, or leave the field empty."
        )
    if how and not (label or outside):
        raise UserError(text("finding_basis_alone", how=how))
    if label and label not in known:
        raise UserError(
            f"{label[:40]!r} is not a class of this bundle; choose a class from the list, or "
            "write a diagnosis outside the classes of the model."
        )
    if label and outside:
        raise UserError(text("finding_both"))
    if len(note) > LONGEST_NOTE:
        raise UserError(text("finding_note_long", n=len(note), most=LONGEST_NOTE))
    given = " ".join(clinician.split()) if label or outside else ""
    if len(given) > LONGEST_NAME or not given.isprintable():
        raise UserError(text("finding_clinician", most=LONGEST_NAME))
    return ConfirmedFinding(label, note.strip(), outside, how, clinician=given)


def outside_of(typed: str, icd10: str, taxonomy: Taxonomy) -> tuple[str, Outside | None]:
    """Return what a free text and a code mean: the key of one of the model's classes, or another.

    Both empty mean nothing: ("", None). The name is looked up in the shipped taxonomies and the
    lexicon, which give the code where none was written. Raises UserError.
    """
    name, code = " ".join(typed.split()), icd10.strip().upper()
    if code and not _ICD10.fullmatch(code):
        raise UserError(text("finding_code", code=icd10.strip()[:20]))
    if len(name) > LONGEST_DIAGNOSIS:
        raise UserError(text("finding_long", n=len(name), most=LONGEST_DIAGNOSIS))
    if not name.isprintable():
        raise UserError(text("finding_invisible"))
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
