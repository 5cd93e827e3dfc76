"""A dataset with other classes: which of them the bundle knows, and under what name."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.taxonomy import SkinClass, Taxonomy

How = Literal["key", "name", "code", "none"]


@dataclass(frozen=True, slots=True)
class ClassMatch:
    """A class of the dataset and the bundle's class that means the same, by its key."""

    label: str
    key: str
    """"" when the bundle has none, or several that it could be."""
    how: How
    pictures: int


@dataclass(frozen=True, slots=True)
class External:
    """The scored part of a dataset with other classes; the rest is only counted."""

    matches: tuple[ClassMatch, ...]
    left_out: int
    """Images of classes that the bundle does not know."""
    absent: tuple[str, ...]
    """Names of the bundle's classes that no scored image shows."""


def join_taxonomies(
    records: Sequence[Record], theirs: Taxonomy | None, ours: Taxonomy, bundle: str
) -> tuple[list[Record], External | None]:
    """Return the records whose class the bundle knows, under its keys, and what was left out.

    The second is None when dataset and bundle have the same classes. Raises UserError when the
    bundle knows none of the dataset's.
    """
    counts = Counter(record.label for record in records)
    matches = [_match(label, n, theirs, ours) for label, n in sorted(counts.items())]
    key_of = {match.label: match.key for match in matches if match.key}
    if not key_of:
        raise UserError(
            f"the dataset's classes {', '.join(sorted(counts)[:5])} are none of the "
            f"{len(ours.classes)} of {bundle}, by key, name or code; evaluate it on a dataset "
            "that shares classes with it."
        )
    known = [
        replace(record, label=key_of[record.label]) for record in records if record.label in key_of
    ]
    same = all(match.how == "key" for match in matches)
    if same and (theirs is None or set(theirs.keys) == set(ours.keys)):
        return known, None
    shown = {record.label for record in known}
    absent = tuple(skin_class.name for skin_class in ours.classes if skin_class.key not in shown)
    return known, External(tuple(matches), len(records) - len(known), absent)


def _match(label: str, images: int, theirs: Taxonomy | None, ours: Taxonomy) -> ClassMatch:
    """Match by key, then by name or synonym, then by a code that stands for one class in both."""
    if label in ours.keys:
        return ClassMatch(label, label, "key", images)
    their = theirs.find(label) if theirs else None
    by_name = _only(ours.find(word) for word in (label, *((their.name,) if their else ())))
    if by_name is None and theirs and their:
        spoken = (ours.find(word) for word in their.synonyms)
        heard = (skin_class for skin_class in ours.classes if _means(skin_class, their, theirs))
        by_name = _only([*spoken, *heard])
    if by_name:
        return ClassMatch(label, by_name.key, "name", images)
    if theirs and their and their.icd10 and _bearers(theirs, their.icd10) == [their]:
        bearers = _bearers(ours, their.icd10)
        if len(bearers) == 1:
            return ClassMatch(label, bearers[0].key, "code", images)
    return ClassMatch(label, "", "none", images)


def _means(ours: SkinClass, their: SkinClass, theirs: Taxonomy) -> bool:
    return any(theirs.find(word) == their for word in (ours.key, ours.name, *ours.synonyms))


def _only(found: Iterable[SkinClass | None]) -> SkinClass | None:
    """Return the class that is found, None when there is none or more than one."""
    classes = {skin_class.key: skin_class for skin_class in found if skin_class}
    return next(iter(classes.values())) if len(classes) == 1 else None


def _bearers(taxonomy: Taxonomy, code: str) -> list[SkinClass]:
    return [skin_class for skin_class in taxonomy.classes if skin_class.icd10 == code]
