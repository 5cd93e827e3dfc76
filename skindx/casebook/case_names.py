"""Names of patients and lesions: one spelling for each, and none that says who a person is.

Two names are one where they differ in case, in white space or in the kind of a dash: "p–017 " is
"P-017". The spelling that came first stays, so that what is kept later joins it.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any, Protocol, Self, TypeVar

from skindx.core.errors import UserError
from skindx.taxonomy.label_matches import known_conditions
from skindx.taxonomy.lexicon import SITES, Laterality, Site
from skindx.texts.catalogue import text

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


def checked_name(typed: str, what: str) -> str:
    """Return a name without space around it. Raises UserError for none and for too long a one."""
    name = " ".join(typed.split())
    if not name:
        raise UserError(text("name_missing", what=what))
    if len(name) > LONGEST_NAME:
        raise UserError(text("name_long", what=what, n=len(name), most=LONGEST_NAME))
    if not name.isprintable():
        raise UserError(text("name_invisible", what=what))
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
_NO_DIGIT = re.compile(r"\D*[^\W\d_]{2}\D*")
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
_BORN = re.compile(
    r"(?:\b(?:born|birth\w*|d\.?o\.?b|b|geb\w*|nacid[oa]|nacimiento|nac|n[ée]e?)\b|\*)\W*"
    r"(?:(?:date|day|is|was|on|the|of|am|el|le|fecha)\W+)*$",
    re.IGNORECASE,
)
"""What stands before a date of birth."""
_DIGIT_ROW = re.compile(r"\d(?:[ .]?\d){6}|\d(?:[ ./-]?\d){8}")
_PHONE = re.compile(
    r"(?:\+\d|\(\d{2,5}\)|\b(?:tel|phone|mobile|cell|fax|call|ring|handy|m[óo]vil)\w*[.:]*\s*\(?\d)"
    r"[\d ()./-]{4,}\d|(?<![\d-])\d{3}[-. ]\d{4}(?![\d-])",
    re.IGNORECASE,
)
_MAIL = re.compile(r"[\w.+-]+\s?@\s?[\w-]+(?:\.\w+)+")
_OF_PERSON = re.compile(r"\b(?:of|from|for|von|de|name:?)\s+[A-Z]\w+[, ]+[A-Z]\w+")
_CAPITAL = r"[^\W\d_a-zß-ÿ][^\W\d_A-ZÀ-Þ]+(?:[-'’]\w+)*"
_IN_NOTE = re.compile(
    rf"(?<!\w)(?:((?:Mrs?|Ms|Miss|Mme|Frau|Herrn?|Sra?|Señora?)\.?\s+{_CAPITAL})"
    rf"|(?<!Dr )(?<!Dr\. )(?<!Prof )(?<!Prof\. )({_CAPITAL},?\s+{_CAPITAL}))"
)
_NO_NAME = re.compile(
    r"january|february|march|april|may|june|july|august|september|october|november|december|"
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|dr|prof|doctor|professor|the|a|an|no|not|on|in|at|of|"
    r"and|or|with|patients?|skin|left|right|upper|lower|breslow|clark|fitzpatrick|mohs|type|stage|"
    r"level|grade|histo\w+|pathology|biopsy|excis\w+|dermato\w+|dermoscopy|clinic|hospital|university|"
    r"department|laboratory|lab|plan|seen|follow|advised|referred|reviewed|removed|taken|sent|new|old|"
    r"see|since|after|before|this|that|it|is|was|has|had|he|she|her|his|they|we|i"
)
_HELD = {
    "a date, perhaps of a birth": _DATE,
    "an e-mail address": _MAIL,
    "a long row of digits, perhaps a number of insurance, record or telephone": _DIGIT_ROW,
}
_INSTEAD = "use a pseudonym such as P-017, and keep the list of pseudonyms elsewhere"


def identifying(patient: str, place: str, what: str) -> str:
    """Return in a sentence what in two names may say who the patient is; "" for nothing.

    `place` names a lesion or a view, as `what` says. A full name is looked for in the patient
    alone: places on the body have several words too.
    """
    left = _NO_NAMES.sub(" ", patient).strip(" ,.-")
    if _FULL_NAME.fullmatch(left):
        return f"the patient {patient!r} looks like the name of a person; {_INSTEAD}."
    if _NO_DIGIT.fullmatch(left):
        return f"the patient {patient!r} has no number and may be a name; {_INSTEAD}."
    if _OF_PERSON.search(place):
        return f"the {what} {place!r} seems to name a person; {_INSTEAD}."
    for name, called in ((patient, "patient"), (place, what)):
        for held, pattern in _HELD.items():
            if pattern.search(name):
                return f"the {called} {name!r} holds {held}; {_INSTEAD}."
    return ""


def note_doubt(note: str, key: str = "note_doubt") -> str:
    """Return in sentences what in a note may say who the patient is; "" for nothing.

    `key` is that of the sentence. A date that nothing calls a birth is none of it: it may be that
    of an excision.
    """
    named = next((one for one in map(_name_in, _IN_NOTE.finditer(note)) if one), "")
    found = [text("note_person", name=named)] if named else []
    found += [text("note_mail", name=one[0]) for one in [_MAIL.search(note)] if one]
    found += [text("note_date", name=one[0]) for one in _dates(note, of_birth=True)[:1]]
    undated = _DATE.sub(" / ", note)
    if _DIGIT_ROW.search(undated) or _PHONE.search(undated):
        found.append(text("note_digits"))
    return text(key, what=found) if found else ""


def note_dated(note: str) -> str:
    """Return a warning of a date in a note that is kept, which may be of a birth; or ""."""
    dates = _dates(note, of_birth=False)
    return text("note_dated", name=dates[0][0]) if dates else ""


def _dates(note: str, *, of_birth: bool) -> list[re.Match[str]]:
    """Return the dates that words before them call a birth, or the others."""
    dates = _DATE.finditer(note)
    return [one for one in dates if bool(_BORN.search(note[: one.start()])) == of_birth]


def _name_in(words: re.Match[str]) -> str:
    """Return two words in capitals where neither is a word of medicine or of the calendar."""
    told = words[1] or words[2]
    plain = words[2] and any(
        _NO_NAME.fullmatch(one) or one in _terms() for one in re.findall(r"\w+", told.lower())
    )
    return "" if plain else told


@cache
def _terms() -> frozenset[str]:
    """Return the words of all conditions that are known."""
    names = (one.skin_class.name for one in known_conditions())
    return frozenset(word for name in names for word in re.findall(r"\w+", name.lower()))


class IdentifyingName(UserError):  # noqa: N818
    """A name that may say who the patient is; it is kept where a person says that it does not."""


def require_pseudonym(patient: str, place: str, what: str, known: Collection[str] = ()) -> None:
    """Raise IdentifyingName for names that may say who the patient is.

    A patient among the `known` ones, whose names a person has answered for, is not asked about
    again.
    """
    asked = "" if spelled(patient, known) in known else patient
    if doubt := identifying(asked, place, what):
        raise IdentifyingName(doubt)


_ON: dict[str, str] = {
    r"scalp|occip\w+|cuero cabelludo": "scalp neck",
    r"faces?|forehead|temple|eyebrows?|eyelids?|cheeks?|nose|nostrils?|chin|jaw|cara|frente|sien"
    r"|cejas?|p[áa]rpados?|mejillas?|nariz|barbilla|ment[óo]n": "face",
    r"ears?|earlobes?|orejas?": "ear face scalp neck",
    r"lips?|labio": "lip face genitals",
    r"necks?|nape|cuello|nuca": "neck",
    r"arms?|forearms?|elbows?|brazos?|antebrazos?|codos?": "arm",
    r"hands?|knuckles?|manos?|nudillos?": "hand palm nail arm",
    r"palms?|palmas?": "palm hand",
    r"fingers?|thumbs?": "hand palm nail arm",
    r"(?:finger|toe)?nails?|u[ñn]as?": "nail hand foot",
    r"chest|breasts?|nipples?|areolas?|sternum|pecho|t[óo]rax|mamas?|pez[óo]n": "chest trunk",
    r"abdomen|belly|tummy|stomach|navel|umbilicus|vientre|barriga|ombligo": "abdomen trunk",
    r"backs?|espalda|spine|columna|lumbar|loins?|scapulae?|shoulder blades?|esc[áa]pulas?"
    r"|om[óo]platos?": "back trunk",
    r"torso|trunk|tronco": "trunk chest abdomen back",
    r"penis|vulva|scrotum|labia|genitals?|pene|escroto|genitales": "genitals",
    r"legs?|thighs?|knees?|shins?|calf|calves|piernas?|muslos?|rodillas?|pantorrillas?": "leg",
    r"foot|feet|heels?|toes?|pies?|tal[óo]n|talones": "foot sole nail leg",
    r"soles?|plantas?": "sole foot",
}
"""What names of lesions call a part of the body -> the places of the list that it may lie in, first
the one that it is called."""
_ON_BORDER: dict[str, str] = {
    r"heads?|cabeza": "scalp face ear lip neck",
    r"labios": "lip face genitals",
    r"shoulders?|hombros?": "arm back chest trunk",
    r"armpits?|axillae?|axillary|axilas?": "arm chest trunk",
    r"wrists?|mu[ñn]ecas?": "arm hand",
    r"dedos?": "hand palm foot sole nail",
    r"collarbone|clavicle|clav[íi]cula": "chest neck arm trunk",
    r"ribs?|costillas?|costado|flanks?|flancos?": "chest abdomen back trunk",
    r"waist|cintura": "abdomen back trunk",
    r"groin|ingles?": "genitals leg abdomen trunk",
    r"hips?|caderas?": "leg abdomen back trunk",
    r"buttocks?|gluteal|nalgas?|gl[úu]teos?": "back leg trunk",
    r"ankles?|tobillos?": "leg foot",
}
"""Parts of the body that none of the places of the list is called."""
_PARTS: dict[Site, str] = {
    "palm": "hand",
    "sole": "foot",
    "nail": "hand foot",
    "ear": "face",
    "lip": "face",
}
"""Places that lie on others: the sole of the foot is the sole."""
_AROUND = (
    "scalp face ear lip neck",
    "neck chest abdomen back trunk arm",
    "arm hand palm nail",
    "abdomen back trunk genitals leg",
    "leg foot sole nail",
)
"""Places that touch: what is near a part of the body may lie in one beside it."""
_NEAR = re.compile(
    r"\b(?:near|by|beside|next to|below|above|under|behind|beneath|between|towards?|cerca|junto"
    r"|bajo|debajo|encima|sobre|detr[áa]s|entre|al lado)\b",
    re.IGNORECASE,
)
_NOT_ON = re.compile(
    r"\b(?:back|front|top|side) of (?!$)|\b(?:came|comes?|coming|grown?|grew|went|cut) back"
    r"|\bback (?:again|since|in|to)\b|\bsole (?:lesion|mole|naevus|nevus|one|spot)|\bfrente a\b"
    r"|\bcara (?:interna|externa|anterior|posterior|lateral|medial|dorsal|ventral)"
    r"|\b(?:left|right)[- ]hand side",
    re.IGNORECASE,
)
"""Words that name no place, although one of them does elsewhere."""
_PLACES = {
    re.compile(rf"\b(?:{words})\b", re.IGNORECASE): frozenset(sites.split())
    for words, sites in (_ON | _ON_BORDER).items()
}
_OF_PLACE = rf"(?=[. ]+(?:\w+ )?(?:{'|'.join(_ON | _ON_BORDER)})\b)"
SIDE_WORDS: dict[Laterality, str] = {
    "left": r"\b(?:left(?! after| over| from| of| in )|izquierd[oa]s?|izq(?:da|do)?(?=\.|$)"
    rf"|(?:lt?|izq){_OF_PLACE})",
    "right": r"\b(?:right(?! below| above| on | under| next| at | in | of| by | beside)"
    rf"|derech[oa]s?|dch[oa](?=\.|$)|(?:rt?|der){_OF_PLACE})",
}
"""How names of lesions give their side, as Python and JavaScript both read it."""


def _called(site: Site) -> str:
    """Return how names of lesions call a place of the list; "" for one that they never call so."""
    words = "|".join(words for words, sites in _ON.items() if sites.split()[0] == site)
    return rf"\b(?:{words})\b" if words else ""


NAMED_PLACES: dict[str, Any] = {
    "laterality": SIDE_WORDS,
    "site": {site: words for site in SITES if (words := _called(site))},
    "parts": _PARTS,
    "near": _NEAR.pattern,
    "none": _NOT_ON.pattern,
}
"""How names of lesions give side and place, for the script of the page."""


def is_elsewhere(lesion: str, site: Site | None) -> bool:
    """Tell whether the name of a lesion gives parts of the body that lie in no such place."""
    if site is None:
        return False
    plain = _NOT_ON.sub(" ", lesion)
    named = [sites for words, sites in _PLACES.items() if words.search(plain)]
    allowed = {one for sites in named for one in sites}
    if _NEAR.search(plain):
        touching = [set(one.split()) for one in _AROUND]
        allowed |= {one for places in touching if places & allowed for one in places}
    if allowed & {"palm", "sole"}:
        allowed.add("palm or sole")
    return bool(named) and site not in allowed


def side_named(lesion: str) -> Laterality | None:
    """Return the side that the name of a lesion gives; None for no side, and for both."""
    sides = [one for one, words in SIDE_WORDS.items() if re.search(words, lesion, re.IGNORECASE)]
    return sides[0] if len(sides) == 1 else None


def site_named(lesion: str) -> Site | None:
    """Return the place of the list that the name of a lesion gives; None for none and for several.

    A lesion near a part of the body may lie on another one, and a shoulder is several places.
    """
    plain = _NOT_ON.sub(" ", lesion)
    if _NEAR.search(plain):
        return None
    places: dict[Site, str] = NAMED_PLACES["site"]
    found = [site for site, words in places.items() if re.search(words, plain, re.IGNORECASE)]
    around = {one for site in found for one in _PARTS.get(site, "").split()}
    named = [site for site in found if site not in around]
    return named[0] if len(named) == 1 else None


NAMED_FACTS: dict[str, Callable[[str], Laterality | Site | None]] = {
    "site": site_named,
    "laterality": side_named,
}
"""Facts that the name of a lesion may give."""
