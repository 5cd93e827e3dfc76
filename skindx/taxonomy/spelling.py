"""Spelling of labels: which differences between two names do not count."""

import re
import unicodedata
from functools import lru_cache

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
