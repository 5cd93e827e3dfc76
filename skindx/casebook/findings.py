"""What a clinician recorded of a kept case: the diagnosis, what it rests on, and what stood before.

A correction keeps the entry that it replaces. Each change of the note keeps the text that it
replaces, unless that text may tell who the patient is: this can be taken out for good.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from skindx.casebook.case_names import LONGEST_NAME, note_doubt
from skindx.core.errors import UserError
from skindx.data.sources.columns import CONFIRMATIONS
from skindx.diagnosis.filing import NOTED, NoteChange
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
    notes: tuple[NoteChange, ...] = ()
    """Each change of the note, and each time that it was found to still fit, oldest first."""

    @property
    def is_given(self) -> bool:
        """Whether there is a diagnosis."""
        return bool(self.confirmed or self.outside)

    @property
    def is_confirmed(self) -> bool:
        """Whether something confirmed the diagnosis, which an opinion does not."""
        return self.is_given and self.confirmed_by not in ("", OPINION)

    def outweighed_by(self, others: Iterable["ConfirmedFinding"]) -> "ConfirmedFinding":
        """Return which diagnosis of the lesion's other cases counts more; NO_FINDING for none.

        A confirmed one counts more than none and than an opinion, an opinion more than none; of
        several that are alike the one that was recorded last does.
        """
        rank = self.is_given + self.is_confirmed
        more = [one for one in others if one.is_given + one.is_confirmed > rank]
        first = datetime.min.replace(tzinfo=UTC)
        return max(more, key=lambda one: (one.is_confirmed, one.found or first), default=NO_FINDING)

    def written(
        self, before: "ConfirmedFinding", now: datetime, by: str, why: "Remarks | None" = None
    ) -> "ConfirmedFinding":
        """Return the finding as it follows another one, which joins the earlier ones.

        Where only the note is new, time, login and earlier entries are those of `before`.
        """
        why = why or Remarks()
        noted = before.notes
        if self.note != before.note:
            kept_text = "" if note_doubt(before.note) else before.note
            what = ("changed" if before.note else "written") if self.note else "removed"
            noted += (NoteChange(now, by, NOTED[what], kept_text, why.writer),)
        elif self.note and why.fits:
            noted += (NoteChange(now, by, "fits", name=why.writer or why.clinician),)
        kept = replace(self, found=before.found, by=before.by, earlier=before.earlier, notes=noted)
        if replace(kept, note=before.note, notes=before.notes) == before:
            return kept
        earlier = before.earlier
        if before.is_given:
            earlier += (EarlierFinding(before.alone, now, by, why.reason),)
        if not self.is_given:
            return replace(self, earlier=earlier, notes=noted)
        return replace(self, found=now, by=by, earlier=earlier, notes=noted)

    @property
    def lapsed(self) -> tuple["EarlierFinding | None", bool]:
        """The last confirmed diagnosis, where it no longer stands, and whether one replaced it.

        None where the diagnosis that stands is confirmed, and where none ever was.
        """
        for place, one in reversed(list(enumerate(() if self.is_confirmed else self.earlier))):
            if one.finding.is_confirmed:
                after = [*(later.finding for later in self.earlier), self][place + 1]
                return one, after.is_given and after.found == one.replaced
        return None, False

    @property
    def alone(self) -> "ConfirmedFinding":
        """The diagnosis without the note and without what stood before."""
        return replace(self, note="", earlier=(), notes=())


NO_FINDING = ConfirmedFinding()


@dataclass(frozen=True, slots=True)
class Remarks:
    """What a person said about a change beside the diagnosis and the note."""

    reason: str = ""
    """Why the diagnosis that stood was replaced or taken back; "" where nobody said."""
    fits: bool = False
    """The note, which is older, still fits the new diagnosis."""
    writer: str = ""
    """Name of who writes the note; "" where nobody gave it."""
    clinician: str = ""
    """Name of whose diagnosis it is, who found that the note fits where no other name is given."""

    @classmethod
    def of(cls, reason: str, writer: str, clinician: str, *, fits: bool) -> "Remarks":
        """Return checked remarks. Raises UserError for texts that are too long."""
        reason, writer = " ".join(reason.split()), " ".join(writer.split())
        if len(reason) > LONGEST_DIAGNOSIS or not reason.isprintable():
            raise UserError(text("finding_reason", most=LONGEST_DIAGNOSIS))
        if len(writer) > LONGEST_NAME or not writer.isprintable():
            raise UserError(text("finding_clinician", most=LONGEST_NAME))
        return cls(reason, fits, writer, clinician)


@dataclass(frozen=True, slots=True)
class EarlierFinding:
    """A diagnosis that another one replaced, or that was taken back."""

    finding: ConfirmedFinding
    """The diagnosis without its note."""
    replaced: datetime
    replaced_by: str
    """Login that replaced it or took it back."""
    reason: str = ""
    """Why, in the words of who did so; "" where nobody said."""


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


def finding_to_json(finding: ConfirmedFinding) -> dict[str, Any]:
    """Return a finding as a case book holds it."""
    held = diagnosis_to_json(finding) | {"note": finding.note}
    if finding.notes:
        held["notes"] = [
            [_text(one.when), one.by, one.what, one.before, one.name] for one in finding.notes
        ]
    if finding.earlier:
        held["earlier"] = [earlier_to_json(one) for one in finding.earlier]
    return held


def earlier_to_json(one: EarlierFinding) -> list[Any]:
    """Return a diagnosis that stood before as a case book holds it."""
    return [diagnosis_to_json(one.finding), _text(one.replaced), one.replaced_by, one.reason]


def earlier_from_json(held: Sequence[Any]) -> EarlierFinding:
    """Return a diagnosis that stood before; an older version kept no reason."""
    before, when, *by_and_why = held
    return EarlierFinding(diagnosis_from_json(before), datetime.fromisoformat(when), *by_and_why)


def diagnosis_to_json(finding: ConfirmedFinding) -> dict[str, Any]:
    """Return a diagnosis as a case book holds it, without the note and what stood before."""
    held: dict[str, Any] = {"confirmed": finding.confirmed}
    if finding.outside:
        held["outside"] = [finding.outside.name, finding.outside.icd10]
    if finding.found:
        held["found"] = _text(finding.found)
    texts = {"confirmed_by": finding.confirmed_by, "by": finding.by, "clinician": finding.clinician}
    return held | {name: text for name, text in texts.items() if text}


def finding_from_json(held: Mapping[str, Any]) -> ConfirmedFinding:
    """Return a finding that a case book of this version or an older one holds."""
    earlier = tuple(map(earlier_from_json, held.get("earlier", ())))
    notes = _note_history(held.get("notes", ()), held.get("note", ""))
    return replace(diagnosis_from_json(held), earlier=earlier, notes=notes)


def diagnosis_from_json(held: Mapping[str, Any]) -> ConfirmedFinding:
    """Return a diagnosis with its note; an older version kept no basis, time or name."""
    outside = Outside(*held["outside"]) if "outside" in held else None
    how, found = held.get("confirmed_by", ""), held.get("found")
    when = datetime.fromisoformat(found) if found else None
    by, clinician = held.get("by", ""), held.get("clinician", "")
    note = held.get("note", "")
    return ConfirmedFinding(held["confirmed"], note, outside, how, when, by, clinician=clinician)


def _note_history(held: Sequence[Sequence[str]], note: str) -> tuple[NoteChange, ...]:
    """Return the changes of a note, beside the note that stands.

    A book of an older version holds time and login alone: there the first entry wrote the note, the
    last one removed it where none stands, and the others changed it.
    """
    last = len(held) - 1
    changes = []
    for place, (when, by, *rest) in enumerate(held):
        gone = place == last and not note
        older = "written" if place == 0 else "removed" if gone else "changed"
        what, before, name = rest or (older, "", "")
        changes.append(NoteChange(datetime.fromisoformat(when), by, NOTED[what], before, name))
    return tuple(changes)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
