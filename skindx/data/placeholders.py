"""Words that stand for no value: *unknown*, *NA*, *0000*; and ids that too many images bear.

Of a table that says `NA` for each patient whom nobody knows, strangers would be one group, and a
class `nan` would be what nobody has diagnosed. So a placeholder is no group, no fact and no label.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median

from skindx.core.text import folded_name
from skindx.taxonomy.lexicon import plain_letters

_WORD = re.compile(
    "unknown|unk|unkn|not known|na|n a|nan|nat|none|null|nil|void|undefined|unspecified|missing"
    "|not (?:available|applicable|specified|stated|given|recorded|reported|determined|assigned)"
    "|no (?:data|id|name|information|value)|noname|unnamed|unassigned|unavailable|tbd|placeholder"
    "|anonymous|anonym|anonymi[sz]ed|anon|de ?identified|redacted|removed|masked|hidden|x{2,}"
    "|unbekannt|nicht (?:bekannt|angegeben|vorhanden)|keine angabe|k a|anonymisiert|fehlt"
    "|inconnue?|non (?:renseignee?|connu|disponible)|anonymee?|anonymisee?"
    "|desconocid[oa]|no disponible|sin datos|no consta|anonim[oa]"
)
_LABELS_ALONE = re.compile("k a|removed|hidden|masked|void")
"""Abbreviations and words that may name a class."""
_SIGNS = re.compile(r"[\W_]+")
_ZEROS = re.compile("0+")

PLAUSIBLE = 12
"""Images of one id from which on it is compared with the others of its source."""
_TIMES = 8
"""Ratio to the median of its source's ids from which an id bears images of several people."""


def is_placeholder(text: str) -> bool:
    """Tell whether a text stands for no value; signs, case and brackets around it do not count."""
    plain = _plain(text)
    return _WORD.fullmatch(plain) is not None or (not plain and "+" not in text)


def is_no_label(text: str) -> bool:
    """Tell whether a label stands for none."""
    return bool(text) and is_placeholder(text) and not _LABELS_ALONE.fullmatch(_plain(text))


def is_zero(text: str) -> bool:
    """Tell whether an id holds zeros alone: no id, unless its source counts from zero."""
    return _ZEROS.fullmatch(folded_name(text)) is not None


def is_nobody(patient_id: str) -> bool:
    """Tell whether the id of a patient in a header stands for nobody."""
    return is_placeholder(patient_id) or is_zero(patient_id)


def _plain(text: str) -> str:
    return _SIGNS.sub(" ", plain_letters(text)).strip()


def crowded_ids(by_source: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Name the ids that bear more images than one person plausibly has, in sentences.

    `by_source` counts the images of each id. An id is named from 12 images on, if it has more than
    8 times the median of its source's ids or more than half of its source's images.
    """
    lines = []
    for source, counts in sorted(by_source.items()):
        typical, total = median(counts.values()), sum(counts.values())
        for name, images in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST]:
            if images >= PLAUSIBLE and (images > _TIMES * typical or 2 * images > total):
                lines.append(
                    f"{source}: {images} of {total} images bear the id {name[:60]!r}, and half of "
                    f"the ids at most {typical:g}: more than one person or lesion plausibly has. "
                    "They are one group; if the id stands for people who are not known, empty it."
                )
    return lines


_MOST = 3


def placeholder_notes(counts: Mapping[str, Iterable[str]]) -> list[str]:
    """Return a sentence for each source about the placeholders that its images bear as ids."""
    lines = []
    for source, words in sorted(counts.items()):
        by_word = Counter(words)
        named = ", ".join(f"{word[:40]!r} ({n})" for word, n in by_word.most_common(_MOST))
        ids = f"ids of {by_word.total()} images are placeholders and make no group"
        lines.append(f"{source}: {ids}: {named}.")
    return lines
