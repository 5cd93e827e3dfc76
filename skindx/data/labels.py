"""Labels: what a source calls a class becomes a key of the taxonomy, or an issue."""

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

from skindx.core.errors import UserError
from skindx.core.text import is_word_sign
from skindx.data.placeholders import is_no_label
from skindx.taxonomy import Taxonomy, Urgency, normalise
from skindx.taxonomy.label_matches import (
    check_urgencies,
    described,
    looks_like,
    match_class,
    match_lines,
    nameless_notes,
    with_urgencies,
)


def taxonomy_of(
    labels: Iterable[str], name: str, urgencies: Mapping[str, Urgency] | None = None
) -> tuple[Taxonomy, list[str]]:
    """Build a taxonomy out of the labels themselves; return it and what each was matched to.

    A label that a shipped taxonomy or the lexicon knows brings code, urgency and description
    along; `urgencies` win over them. Spellings that differ only in case, spaces or punctuation are
    one class. Raises UserError for a label without a letter or digit, and for a class that looks
    like a cancer or an emergency and has no urgency.
    """
    labels = sorted(set(labels))
    named = keys_of(labels)
    classes = described(named)
    raw = {"name": name, "title": name, "classes": [each.model_dump() for each in classes]}
    taxonomy = with_urgencies(Taxonomy.parse(raw, "the labels of the sources"), urgencies or {})
    check_urgencies(taxonomy)
    lines = alike_notes(labels) + match_lines(named, taxonomy)
    return taxonomy, lines + nameless_notes(taxonomy)


def keys_of(labels: Iterable[str]) -> dict[str, str]:
    """Return the key of each class that labels name, and the label as its name.

    Raises UserError for a label that cannot name a folder.
    """
    keys: dict[str, str] = {}
    named: dict[str, str] = {}
    for label in sorted(set(labels)):
        plain = unicodedata.normalize("NFKC", label)
        seen = (char for char in plain if unicodedata.category(char) != "Cf")
        signs = (char if char in "_-" or is_word_sign(char) else "\0" for char in seen)
        key = re.sub("\0+", "_", "".join(signs)).strip("_-")
        if not normalise(key):
            raise UserError(
                f"the label {label!r} has no letter or digit; rename this class in the source."
            )
        if len(key.encode()) > _LONGEST_KEY:
            raise UserError(
                f"the label {label[:60]!r}… is too long for a folder name; shorten it to "
                f"{_LONGEST_KEY} bytes in the source, or set `columns.label` in the recipe to "
                "another column."
            )
        if keys.setdefault(normalise(label), key) == key:
            named.setdefault(key, " ".join(plain.replace("_", " ").split()))
    return named


_LONGEST_KEY = 240
"""Bytes of UTF-8; file systems take 255."""


def alike_notes(labels: Iterable[str]) -> list[str]:
    """Name the labels that are one class, since they differ in case, blanks and signs alone."""
    spellings: dict[str, list[str]] = {}
    for label in sorted(set(labels)):
        spellings.setdefault(normalise(label), []).append(label)
    return [
        f"labels {' and '.join(map(repr, same))} are one class: they differ in case, blanks, "
        "signs or the form of letters alone."
        for same in spellings.values()
        if len(same) > 1
    ]


def is_label(label: str, taxonomy: Taxonomy | None) -> bool:
    """Tell whether a label names a class; *nan* and *unknown* do where the taxonomy has them."""
    return not is_no_label(label) or (taxonomy is not None and taxonomy.find(label) is not None)


def no_label_notes(counts: Mapping[str, int]) -> list[str]:
    """Say how many images have a label that names no class; `counts` are images by label."""
    if not counts:
        return []
    named = ", ".join(f"{label[:40]!r} ({n})" for label, n in sorted(counts.items())[:5])
    return [
        f"images are left out whose label names no class: {named}; rename a label that does, such "
        "as none to normal and unknown to other."
    ]


def match_notes(known: Mapping[str, str], taxonomy: Taxonomy) -> list[str]:
    """Return which labels were taken for a class that does not name them, in sentences."""
    return [
        f"label {label!r} is taken for {key} of {taxonomy.name}."
        for label, key in sorted(known.items())
        if not taxonomy.find(label)
    ]


def left_out_notes(counts: Mapping[str, int], taxonomy: Taxonomy) -> list[str]:
    """Name the labels that are no class of a taxonomy and look like a cancer or an emergency.

    `counts` are images by label. A model that never sees them gives them another name.
    """
    return [
        f"label {label!r} looks like {kind} and is no class of {taxonomy.name}: its {count} "
        f"image{'s are' if count != 1 else ' is'} left out, and a model that learns from the rest "
        "gives such a photo another name."
        for label, count in sorted(counts.items())
        if (kind := looks_like(match_class(label)))
    ]


def check_labels(labels: Iterable[str], taxonomy: Taxonomy) -> None:
    """Raise UserError for a manifest's label that is no key of its taxonomy.

    Labels name folders and columns, so no other word may reach them.
    """
    if unknown := sorted(set(labels) - set(taxonomy.keys)):
        raise UserError(
            f"the dataset has images of the class {unknown[0][:80]!r}, but its taxonomy "
            f"{taxonomy.name!r} has no such class; one of them was changed after the build, so run "
            "`skindx build` again."
        )


def map_labels(labels: Iterable[str], taxonomy: Taxonomy, min_known: float = 0.5) -> dict[str, str]:
    """Return the taxonomy key of each distinct label that the taxonomy knows.

    `labels` holds one entry an image. Raises UserError when the taxonomy knows the labels of
    less than the share `min_known` of the images: it is then the wrong one.
    """
    counts = Counter(labels)
    matches = {label: taxonomy.recognise(label) for label in counts}
    known = {label: match.key for label, match in matches.items() if match}
    unknown = Counter({label: n for label, n in counts.items() if label not in known})
    if unknown.total() > (1 - min_known) * counts.total():
        label = unknown.most_common(1)[0][0]
        near = difflib.get_close_matches(label, taxonomy.keys, n=3, cutoff=0.0)
        raise UserError(
            f"the taxonomy {taxonomy.name} does not have the labels of {unknown.total()} of "
            f"{counts.total()} images, such as {label!r} (most similar: {', '.join(near)}); "
            "choose another --taxonomy, keep the labels with --taxonomy none, or lower "
            "`min_known` to exclude these images."
        )
    return known


UNMAPPED = frozenset({"unmapped-label", "unknown-label"})
"""Reasons why a label has no class: by decision, or because it is unknown."""


def unmapped_label(label: str, taxonomy: Taxonomy) -> tuple[str, str]:
    """Return (reason, detail) of the issue of a label that the taxonomy does not know."""
    decided = taxonomy.why_unmapped(label)
    if decided:
        return "unmapped-label", f"{label!r} means no class of {taxonomy.name}: {decided}"
    return "unknown-label", f"the taxonomy {taxonomy.name} has no class of this name"
