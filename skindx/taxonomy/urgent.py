"""Urgent conditions of the skin that a photo may show whatever a taxonomy knows.

A model names one of its own classes for every photo, so what it lacks has to be said beside its
answers. The list is not complete, and no clinician has reviewed it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from skindx.taxonomy import SkinClass, Taxonomy, normalise


@dataclass(frozen=True)
class UrgentCondition:
    """One condition, and how a class that stands for it is recognised: see `tables/urgent.yaml`."""

    name: str
    codes: str
    labels: Sequence[str]
    kinds: Sequence[str] = ()
    decides: bool = False

    def is_meant_by(self, skin_class: SkinClass) -> bool:
        """Tell whether a class stands for this condition as a whole."""
        names = {
            normalise(label) for label in (skin_class.key, skin_class.name, *skin_class.synonyms)
        }
        if names & {normalise(label) for label in (*self.labels, *_cancers(self))}:
            return True
        titles = {normalise(skin_class.key), normalise(skin_class.name)}
        one_kind = titles & {normalise(kind) for kind in self.kinds}
        return not one_kind and re.match(self.codes, skin_class.icd10) is not None


_ANY_CANCER = (
    "skin cancer",
    "malignant",
    "malignant lesion",
    "malignant tumour",
    "malignant tumor",
)


def _cancers(condition: UrgentCondition) -> tuple[str, ...]:
    """Return the labels of a class that holds all cancers of the skin, for one of them."""
    return _ANY_CANCER if condition.codes.startswith("C") else ()


@cache
def urgent_conditions() -> tuple[UrgentCondition, ...]:
    text = (Path(__file__).parent / "tables" / "urgent.yaml").read_text(encoding="utf-8")
    return tuple(UrgentCondition(name, **row) for name, row in yaml.safe_load(text).items())


def unknown_urgent(taxonomy: Taxonomy) -> tuple[UrgentCondition, ...]:
    """Return the urgent conditions that none of a taxonomy's classes stands for."""
    return unknown_to(taxonomy.classes)


def unknown_to(classes: Sequence[SkinClass]) -> tuple[UrgentCondition, ...]:
    """Return the urgent conditions that none of these classes stands for."""
    return tuple(
        condition
        for condition in urgent_conditions()
        if not any(condition.is_meant_by(skin_class) for skin_class in classes)
    )
