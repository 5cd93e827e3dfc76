"""Names of patients and lesions: one spelling for each, and none that says who a person is.

Two names are one where they differ in case, in white space or in the kind of a dash: "p–017 " is
"P-017". The spelling that came first stays, so that what is kept later joins it.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Protocol, Self, TypeVar

from skindx.core.errors import UserError

LONGEST_NAME = 80


class HasNames(Protocol):
    """What bears the names of a patient and of a place: a case, its card, a scan."""

    @property
    def owner(self) -> str: ...
    @property
    def patient(self) -> str: ...
    @property
    def place(self) -> str: ...
    def renamed(self, patient: str, place: str) -> Self: ...


Named = TypeVar("Named", bound=HasNames)

_DASH = re.compile(r"\s*[-\u2010-\u2015\u2212\u2043\ufe58\ufe63\uff0d]+\s*")


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


def name_key(name: str) -> str:
    """Return what all spellings of a name have in common."""
    plain = unicodedata.normalize("NFKC", " ".join(name.split()))
    return _DASH.sub("-", plain).casefold().strip()


def spelled(name: str, known: Iterable[str]) -> str:
    """Return the first of the known names that is this one in another spelling, else the name."""
    return next((one for one in known if name_key(one) == name_key(name)), name)


def one_spelling(named: Sequence[Named]) -> list[Named]:
    """Return cards, cases or scans, oldest first, each name of a patient and place spelled once.

    Patients of two owners are two.
    """
    firsts: dict[tuple[str, ...], Named] = {}
    spelled_alike = []
    for one in named:
        patient = firsts.setdefault((one.owner, name_key(one.patient)), one)
        place = (one.owner, name_key(one.patient), name_key(one.place))
        spelled_alike.append(one.renamed(patient.patient, firsts.setdefault(place, one).place))
    return spelled_alike


_LETTERS = r"[^\W\d_]"
_WORD = rf"{_LETTERS}+(?:[-'’]{_LETTERS}+)*"
_FULL_NAME = re.compile(
    rf"(?:{_WORD}\.?[, ]+)+{_WORD}\.?|[\u4e00-\u9fff]{{2,4}}|[\uac00-\ud7a3]{{2,4}}"
)
_NO_NAMES = re.compile(
    r"\b(?:patient|case|person|proband|subject|participant|volunteer|study|test|trial|example|demo|"
    r"anonymous|unknown|child|adult|man|woman|the|no|number|group|control)\b",
    re.IGNORECASE,
)
_MONTHS = "jan|feb|mar|mär|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez"
_DATE = re.compile(
    r"(?<!\d)(?:\d{1,2}\s*[./-]\s*\d{1,2}\s*[./-]\s*(?:\d{4}|\d{2})|\d{4}\s*[./-]\s*\d{1,2}\s*[./-]"
    rf"\s*\d{{1,2}}|\d{{1,2}}\.?\s+(?:{_MONTHS})\w*\.?,?\s+\d{{2,4}}|(?:{_MONTHS})\w*\s+\d{{1,2}},?"
    r"\s+\d{4})(?!\d)",
    re.IGNORECASE,
)
_DIGIT_ROW = re.compile(r"\d(?:[ .]?\d){6}|\d(?:[ ./-]?\d){8}")
_INSTEAD = "use a pseudonym such as P-017, and keep the list of pseudonyms elsewhere"


def identifying(patient: str, place: str, what: str) -> str:
    """Return in a sentence what in two names may say who the patient is; "" for nothing.

    `place` names a lesion or a view, as `what` says. A full name is looked for in the patient
    alone: places on the body have several words too.
    """
    if _FULL_NAME.fullmatch(patient) and not _NO_NAMES.search(patient):
        return f"the patient {patient!r} looks like the name of a person; {_INSTEAD}."
    for name, called in ((patient, "patient"), (place, what)):
        if _DATE.search(name):
            return f"the {called} {name!r} holds a date, perhaps of a birth; {_INSTEAD}."
        if _DIGIT_ROW.search(name):
            return (
                f"the {called} {name!r} holds a long row of digits, perhaps a number of insurance, "
                f"record or telephone; {_INSTEAD}."
            )
    return ""


class IdentifyingName(UserError):  # noqa: N818
    """A name that may say who the patient is; it is kept where a person says that it does not."""


def require_pseudonym(patient: str, place: str, what: str) -> None:
    """Raise IdentifyingName for names that may say who the patient is."""
    if doubt := identifying(patient, place, what):
        raise IdentifyingName(
            f"{doubt} If it names nobody, tick the box below the names and keep it."
        )
