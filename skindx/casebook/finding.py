"""What a clinician confirmed: a class of the model, or another diagnosis, which trains nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from skindx.core.errors import UserError
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.matching import match

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
        """The diagnosis with its code."""
        return f"{self.name} ({self.icd10})" if self.icd10 else self.name


@dataclass(frozen=True, slots=True)
class Finding:
    """The confirmed diagnosis and the note on it."""

    confirmed: str = ""
    """Key of the class; "" for none, and for a diagnosis outside the classes."""
    note: str = ""
    outside: Outside | None = None


def finding_of(
    label: str, note: str, known: Sequence[str], outside: Outside | None = None
) -> Finding:
    """Return a finding; "" takes the diagnosis back. Raises UserError for what cannot be kept.

    `known` are the keys of the model's classes.
    """
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
    return Finding(label, note.strip(), outside)


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
    own = taxonomy.recognise(name) if name else None
    if own and (not code or code == own.icd10):
        return own.key, None
    if _ICD10.fullmatch(name.upper()):
        code = code or name.upper()
        name = known.skin_class.name if known else name.upper()
    if not name:
        name = known.skin_class.name if known else code
    return "", Outside(name, code or (known.skin_class.icd10 if known else ""))
