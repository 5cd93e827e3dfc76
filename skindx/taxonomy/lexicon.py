"""Spelling of labels, and names of conditions in other languages, abbreviations and codes.

A label that no taxonomy spells out leads through this list to a label that one does. Places on the
body are one fixed list with what sources call them. It is coarse, since sources are: HAM10000 names
fifteen places (Tschandl, Rosendahl and Kittler, "The HAM10000 dataset", Sci Data 2018, table 3),
each of which has its place here.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import yaml

from skindx.core.settings_base import Settings
from skindx.core.text import folded_name, is_word_sign
from skindx.core.untrusted import read_plain_yaml

_NO_MEANING = re.compile(
    "an?|the|of|in|on|der|die|das|des|du|de|l[ae]s?|el|los|del|d|l|nos|unspecified"
    "|photos?|images?|pictures?|bild(er)?|fotos?|class|[ck]lasse|clase"
)
_SIGN = re.compile(r"[&+/;]")
_AND = re.compile(
    r"[&+/;]|(?<![^\W_])(?:and|or|vs|versus|und|oder|et|ou|y|o)(?![^\W_])", re.IGNORECASE
)
"""Separators between two names."""
_BOTH = "ampersand"
"""Word for a separator in a set of words: a name of two diseases names none of them."""
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
_SIZE = re.compile(r"\d[\W_]*mm")
"""A size such as 5 mm, which is not the abbreviation of malignant melanoma."""
_DOUBLED = re.compile(r"(\w)\1")
_SHORTEST_WORD = 4
"""Shorter words may be abbreviations, in which each letter counts."""
_LONG_WORD = 7
"""Fewest letters of a word in an unknown language whose plural may end in -e, -n or -en."""

_LATIN = (("a", "ae"), ("us", "i"), ("um", "a"), ("is", "es"), ("ma", "mata"), ("is", "ides"))
_PLURALS = {
    "en": (*_LATIN, ("", "s"), ("", "es"), ("y", "ies")),
    "la": _LATIN,
    "de": (*_LATIN, ("", "e"), ("", "n"), ("", "en"), ("", "s")),
    "fr": (("", "s"), ("", "x")),
    "es": (("", "s"), ("", "es"), ("z", "ces")),
}
"""Language -> endings of one and of several, of a name's last word."""

Rule = Literal[
    "its name",
    "a synonym",
    "an abbreviation",
    "a code",
    "another spelling",
    "a plural",
    "its words",
]
"""How a label was matched."""


@lru_cache(maxsize=4096)  # each answer compares the same few hundred names
def normalise(label: str) -> str:
    """Reduce a label to its letters and digits, so that spelling variants compare equal."""
    # A dropped sign may have parted letter and accent.
    return folded_name("".join(parts(folded_name(label))))


def is_one_name(label: str) -> bool:
    """Tell whether no sign parts a label into two names, which `normalise` would join."""
    return _SIGN.search(label) is None


def parts(text: str) -> list[str]:
    """Return the runs of letters, their marks and digits."""
    return "".join(char if is_word_sign(char) else " " for char in text).split()


def older_form(label: str) -> str:
    """Return the letters and digits by which versions up to 1.0 told classes apart."""
    folded = unicodedata.normalize("NFKC", label).casefold()
    return "".join(char for char in folded if unicodedata.category(char)[0] in "LMN")


def plain_letters(text: str) -> str:
    """Return lower-case text without accents of Latin letters, ligatures as two letters."""
    apart = unicodedata.normalize("NFD", folded_name(text).translate(_LIGATURES))
    return unicodedata.normalize("NFC", re.sub("(?<=[a-z])[\u0300-\u036f]+", "", apart))


def words(label: str) -> list[str]:
    """Return the words of a label in plain letters; `BasalCell` holds two, numbers none."""
    apart = re.sub(r"(?<=[^\W\d_A-Z])(?=[A-Z])", " ", label)
    return [word for word in parts(plain_letters(apart)) if _COUNT.fullmatch(word) is None]


def means_something(word: str) -> bool:
    """Tell whether a word of a label says anything of it: not an article, photo or class."""
    return not _NO_MEANING.fullmatch(word)


def _spellings(label: str) -> tuple[str, str]:
    """Return a label with umlauts as one letter and as two."""
    return label, folded_name(label).translate(_UMLAUTS)


@lru_cache(maxsize=4096)
def name_keys(label: str) -> tuple[frozenset[str], ...]:
    """Return the sets of two or more word stems by which a label is compared, the strictest first.

    One word alone is never compared by its stem: *true* and *thrush* have the same.
    """
    keys = []
    for text in _spellings(_AND.sub(f" {_BOTH} ", label)):
        stems = [_stem(word) for word in words(text) if means_something(word)]
        keys += [frozenset(stems), frozenset(stem for stem in stems if stem not in _OPTIONAL)]
    return tuple(dict.fromkeys(key for key in keys if len(key - {_BOTH}) > 1))


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
    short: tuple[str, ...] = ()
    """Abbreviations."""
    en: tuple[str, ...] = ()
    la: tuple[str, ...] = ()
    de: tuple[str, ...] = ()
    fr: tuple[str, ...] = ()
    es: tuple[str, ...] = ()
    icd10: str = ""
    urgency: str = ""
    description: str = ""

    @property
    def by_language(self) -> Mapping[str, tuple[str, ...]]:
        """Names by the language of their plural; abbreviations have none."""
        known = {"en": self.en, "la": self.la, "de": self.de, "fr": self.fr, "es": self.es}
        return {"short": self.short, **known}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for names in self.by_language.values() for name in names)


Names = Iterable[tuple[str, str, str]]
"""Name, the language of its plural ("": unknown) and the condition that it means."""


@dataclass(frozen=True)
class NameIndex:
    """Which of several conditions a name means; a name that means two of them means none."""

    whole: Mapping[str, tuple[str, Rule]]
    """All letters of a name, its other spellings and its plurals."""
    by_words: Mapping[frozenset[str], str]

    @classmethod
    def from_names(cls, names: Names) -> "NameIndex":
        """Index names; an exact one goes before other spellings and plurals."""
        whole: dict[str, tuple[str, Rule]] = {}
        variants: dict[str, tuple[str, Rule]] = {}
        by_words: dict[frozenset[str], str] = {}
        for name, language, condition in names:
            for text in (_SIGN.sub(" and ", name), name):
                whole.setdefault(normalise(text), (condition, "a synonym"))
            for form, rule in _variants(name, language):
                if variants.setdefault(form, (condition, rule))[0] != condition:
                    variants[form] = ("", rule)
            for key in {form for each in name_keys(name) for form in (each, each - {_BOTH})}:
                if by_words.setdefault(key, condition) != condition:
                    by_words[key] = ""
        return cls(MappingProxyType({**variants, **whole}), MappingProxyType(by_words))

    def find(self, label: str) -> tuple[str, Rule]:
        """Return the condition that a label means, "" for none or several, and how it was found.

        A label that means something in one word alone must be that word, in any spelling or its
        plural. A label of two names means what both of them mean.
        """
        for form in _forms(_SIGN.sub(" and ", label)):
            if form in self.whole:
                return self.whole[form]
        for form in (form for text in _only_words(label) for form in _forms(text)):
            if form in self.whole:
                return self.whole[form][0], "its words"
        for key in name_keys(label):
            if self.by_words.get(key):
                return self.by_words[key], "its words"
        halves = [half for half in _AND.split(label) if words(half)]
        meant = {self.find(half)[0] for half in halves} if len(halves) > 1 else {""}
        return (meant.pop(), "its words") if len(meant) == 1 else ("", "its words")


def _forms(text: str) -> Iterator[str]:
    """Yield all letters of a text as they are compared with whole names."""
    yield normalise(text)
    yield from ("".join(parts(plain_letters(each))) for each in _spellings(text))


def _only_words(label: str) -> Iterator[str]:
    """Yield a label of one name without numbers and words that mean nothing."""
    if _AND.search(label) or _SIZE.search(label):
        return
    plain = list(filter(means_something, words(label)))
    for left in (plain, [word for word in plain if _stem(word) not in _OPTIONAL]):
        yield "".join(left)


def _variants(name: str, language: str) -> Iterator[tuple[str, Rule]]:
    """Yield other spellings of a name, and its plurals in its language."""
    for form in _forms(name):
        yield form, "another spelling"
        if len(form) < _SHORTEST_WORD:
            continue
        for known, endings in _PLURALS.items():
            if known == language or (not language and (known != "de" or len(form) >= _LONG_WORD)):
                for one, several in endings:
                    if form.endswith(one):
                        yield form.removesuffix(one) + several, "a plural"


@cache
def entries() -> Mapping[str, LexiconEntry]:
    """Return the conditions by their heading, a label of a shipped taxonomy or a new one."""
    with resources.as_file(resources.files("skindx.taxonomy") / LEXICON) as file:
        raw = read_plain_yaml(file)
    return MappingProxyType({head: LexiconEntry.parse(entry, head) for head, entry in raw.items()})


@lru_cache(maxsize=4096)
def heading_of(label: str) -> tuple[str, Rule]:
    """Return the heading that a label means, "" for none, and how it was found.

    Where a label holds a name and a code or a second name in brackets, both must agree.
    """
    whole, rule = _by_name().find(label)
    if whole:
        return whole, "an abbreviation" if normalise(label) in abbreviations() else rule
    if single := _by_code(label):
        return single, "a code"
    outside = _BRACKETS.sub(" ", label)
    inside = [first or second for first, second in _BRACKETS.findall(label)]
    codes = [match.group(1) for match in _CODE_IN_TEXT.finditer(label)]
    coded = [heading for code in codes if (heading := _by_code(code))]
    if coded:
        outside = _CODE_IN_TEXT.sub(" ", outside)
        inside = [part for part in inside if not _CODE_IN_TEXT.fullmatch(part.strip())]
    texts = [part for part in (outside, *inside) if any(map(means_something, words(part)))]
    named = [_by_name().find(part)[0] for part in texts]
    meant = {*coded, *named}
    if len(meant) != 1 or (len(texts) < 2 and not coded):
        return "", rule
    return meant.pop(), "a code" if coded else "its words"


def codes_in(label: str) -> tuple[str, ...]:
    """Return the ICD codes that a label is or holds, in capital letters without their dots."""
    whole = normalise(label)
    held = [whole] if _CODE.fullmatch(whole) else _CODE_IN_TEXT.findall(label)
    return tuple(code.upper().replace(".", "") for code in held)


@cache
def _by_name() -> NameIndex:
    return NameIndex.from_names(
        (name, language, heading)
        for heading, entry in entries().items()
        for language, names in entry.by_language.items()
        for name in ((heading, *names) if language == "en" else names)
    )


@cache
def abbreviations() -> frozenset[str]:
    """Return the abbreviations of all conditions, which have no plural and no other spelling."""
    return frozenset(normalise(text) for entry in entries().values() for text in entry.short)


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


Site = Literal[
    "scalp",
    "face",
    "ear",
    "lip",
    "neck",
    "chest",
    "abdomen",
    "back",
    "trunk",
    "arm",
    "hand",
    "palm",
    "nail",
    "genitals",
    "leg",
    "foot",
    "sole",
    "palm or sole",
]
"""`trunk` is chest, abdomen or back where a source does not say which; acral: `palm or sole`."""
SITES: tuple[Site, ...] = get_args(Site)
Laterality = Literal["left", "right", "midline"]
"""The side of the person's body, as the person would name it."""


class SiteRow(NamedTuple):
    """A place of the list, as `tables/body_sites.yaml` has it."""

    codes: str
    """SNOMED CT codes of the place and of what lies in it."""
    also: Sequence[str] = ()
    """What sources call it, the ISIC archive's names (ImageMarkup/isic-metadata) among them."""
    concept: str = ""
    """The code of the place itself and its meaning; of the sole that of the foot's skin."""
    within: Site | None = None
    """The wider place by which most sources name it."""


@cache
def site_table() -> dict[Site, SiteRow]:
    text = (Path(__file__).parent / "tables" / "body_sites.yaml").read_text(encoding="utf-8")
    return {site: SiteRow(**row) for site, row in yaml.safe_load(text).items()}


@cache
def snomed_sites() -> dict[str, Site]:
    """Return the place of each SNOMED CT code."""
    return {code: site for site, row in site_table().items() for code in row.codes.split()}


@cache
def wider_site(site: str) -> str:
    """Return the place by which most sources name a finer one, such as the face of a lip."""
    wider = (row.within for name, row in site_table().items() if name == site)
    return next(wider, None) or site


@cache
def _synonyms() -> dict[str, Site]:
    return {name: site for site, row in site_table().items() for name in row.also}


def site_of(text: str) -> str:
    """Return the place that a text names; a text that names none of the list stays as it is."""
    plain = " ".join(text.casefold().split())
    return _synonyms().get(plain, plain)
