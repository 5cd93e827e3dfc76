"""Spelling of labels, and names of conditions in other languages, abbreviations and codes.

A label that no taxonomy spells out leads through this list to a label that one does.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from types import MappingProxyType

from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_plain_yaml

_NO_MEANING = re.compile(
    "an?|the|of|in|on|der|die|das|des|du|de|l[ae]s?|el|los|del|et|y|und|and|or|d|l|nos|unspecified"
    "|photos?|images?|pictures?|bild(er)?|fotos?|class|[ck]lasse|clase"
)
_LIGATURES = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l"})
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})
_SOUNDS = (
    ("ph", "f"),
    ("h", ""),
    ("qu", "c"),
    ("ae", "e"),
    ("oe", "e"),
    ("y", "i"),
    ("k", "c"),
    ("z", "c"),
)
"""Letters that Latin and Greek words change between languages: Karzinom, queratosis, mycose."""
_ENDING = re.compile(r"(?<=\w{3})(?:(?<=om)ata|ides|ibus|uses|[aio]s|es|us|um|ae|en|[aeios])$")
_COUNT = re.compile(r"(\d+k?)?")
_DOUBLED = re.compile(r"(\w)\1")
_SHORTEST_WORD = 4
"""Shorter words may be abbreviations, in which each letter counts."""


@lru_cache(maxsize=4096)  # each answer compares the same few hundred names
def normalise(label: str) -> str:
    """Reduce a label to its letters and digits, so that spelling variants compare equal."""
    folded = unicodedata.normalize("NFKC", label).casefold()
    # Letters, their marks and digits; not isalnum(), which drops the vowel signs of Indic scripts.
    kept = "".join(char for char in folded if unicodedata.category(char)[0] in "LMN")
    return unicodedata.normalize("NFKC", kept)  # a dropped sign may have parted letter and accent


def plain_letters(text: str) -> str:
    """Return lower-case text without accents of Latin letters, ligatures as two letters."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_LIGATURES)
    apart = unicodedata.normalize("NFD", folded)
    return unicodedata.normalize("NFC", re.sub("(?<=[a-z])[\u0300-\u036f]+", "", apart))


def words(label: str) -> list[str]:
    """Return the words of a label in plain letters; `BasalCell` holds two, numbers none."""
    apart = re.sub(r"(?<=[^\W\d_A-Z])(?=[A-Z])", " ", label)
    return [
        word for word in re.split(r"[\W_]+", plain_letters(apart)) if _COUNT.fullmatch(word) is None
    ]


@lru_cache(maxsize=4096)
def name_keys(label: str) -> tuple[frozenset[str], ...]:
    """Return what a label is compared by, the strictest first.

    Names are equal where one key of each is: the sets of their word stems, with umlauts as one
    letter or two, and the stem of all letters in one word, for compounds.
    """
    keys = []
    for text in (label, unicodedata.normalize("NFC", label).casefold().translate(_UMLAUTS)):
        stems = [_stem(word) for word in words(text) if not _NO_MEANING.fullmatch(word)]
        keys += [frozenset(stems), frozenset([_stem("".join(words(text)))])]
        keys.append(frozenset(stem for stem in stems if stem not in _OPTIONAL))
    return tuple(dict.fromkeys(key for key in keys if key - {""}))


def _stem(word: str) -> str:
    """Return a word without its ending, spelt alike in all Western languages."""
    if len(word) < _SHORTEST_WORD:
        return word
    if len(word) > _SHORTEST_WORD:
        for letters, sound in _SOUNDS:
            word = word.replace(letters, sound)
        word = _DOUBLED.sub(r"\1", word)
    return _ENDING.sub("", word)


_OPTIONAL = frozenset(
    _stem(word)
    for word in ("skin", "cutaneous", "cutanée", "cutáneo", "haut", "piel", "peau", "lesion")
)
"""Stems of words without which a name means the same, where nothing bears the name with them."""


LEXICON = "lexicon.yaml"

_CODE = re.compile(r"[a-z]\d[0-9a-z]{1,5}|[0-9a-z][a-z]\d[0-9a-z]{1,4}")
"""An ICD-10 or ICD-11 code in lower case, without its dot."""
_CODE_IN_TEXT = re.compile(
    r"(?<![^\W_])([A-Z]\d[0-9A-Z](?:\.[0-9A-Z]{1,4})?|[0-9A-Z][A-Z]\d[0-9A-Z](?:\.[0-9A-Z]{1,3})?)"
    r"(?![^\W_])",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"\(([^()]*)\)|\[([^][]*)\]")


class LexiconEntry(Settings):
    """One condition; `icd10` and `urgency` stand where no shipped taxonomy has it."""

    codes: tuple[str, ...] = ()
    en: tuple[str, ...] = ()
    la: tuple[str, ...] = ()
    de: tuple[str, ...] = ()
    fr: tuple[str, ...] = ()
    es: tuple[str, ...] = ()
    icd10: str = ""
    urgency: str = ""
    description: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.en, *self.la, *self.de, *self.fr, *self.es)


@dataclass(frozen=True)
class NameIndex:
    """Which of several conditions a name means; a name that means two of them means none."""

    exact: Mapping[str, str]
    by_key: Mapping[frozenset[str], str]

    @classmethod
    def of(cls, names: Iterable[tuple[str, str]]) -> "NameIndex":
        """Index pairs of a name and the condition that it means."""
        exact: dict[str, str] = {}
        by_key: dict[frozenset[str], str] = {}
        for name, condition in names:
            exact.setdefault(normalise(name), condition)
            for key in name_keys(name):
                if by_key.setdefault(key, condition) != condition:
                    by_key[key] = ""
        return cls(MappingProxyType(exact), MappingProxyType(by_key))

    def find(self, label: str) -> str:
        """Return the condition that a label means, "" for none or several."""
        if exact := self.exact.get(normalise(label)):
            return exact
        return next((self.by_key[key] for key in name_keys(label) if self.by_key.get(key)), "")


@cache
def entries() -> Mapping[str, LexiconEntry]:
    """Return the conditions by their heading, a label of a shipped taxonomy or a new one."""
    with resources.as_file(resources.files("skindx.taxonomy") / LEXICON) as file:
        raw = read_plain_yaml(file)
    return MappingProxyType({head: LexiconEntry.parse(entry, head) for head, entry in raw.items()})


@lru_cache(maxsize=4096)
def heading_of(label: str) -> str:
    """Return the heading that a label means by name, abbreviation or code, "" for none.

    Where a label holds a name and a code or a second name in brackets, both must agree.
    """
    if whole := _by_name().find(label) or _by_code(label):
        return whole
    outside = _BRACKETS.sub(" ", label)
    inside = [first or second for first, second in _BRACKETS.findall(label)]
    codes = [match.group(1) for match in _CODE_IN_TEXT.finditer(label)]
    coded = [heading for code in codes if (heading := _by_code(code))]
    if coded:
        outside = _CODE_IN_TEXT.sub(" ", outside)
        inside = [part for part in inside if not _CODE_IN_TEXT.fullmatch(part.strip())]
    parts = [part for part in (outside, *inside) if name_keys(part)]
    named = [_by_name().find(part) for part in parts]
    if len(parts) + len(coded) < 2 and not coded:
        return ""
    meant = {*coded, *named}
    return meant.pop() if len(meant) == 1 else ""


def codes_in(label: str) -> tuple[str, ...]:
    """Return the ICD codes that a label is or holds, in capital letters without their dots."""
    whole = normalise(label)
    held = [whole] if _CODE.fullmatch(whole) else _CODE_IN_TEXT.findall(label)
    return tuple(code.upper().replace(".", "") for code in held)


@cache
def _by_name() -> NameIndex:
    return NameIndex.of(
        (name, heading) for heading, entry in entries().items() for name in (heading, *entry.names)
    )


def _by_code(code: str) -> str:
    """Return the heading whose pattern covers most of a code; "" for a label that is none."""
    plain = normalise(code)
    if not _CODE.fullmatch(plain):
        return ""
    lengths = {
        match.end(): heading
        for heading, entry in entries().items()
        for pattern in entry.codes
        if (match := re.match(pattern, plain.upper()))
    }
    return lengths[max(lengths)] if lengths else ""
