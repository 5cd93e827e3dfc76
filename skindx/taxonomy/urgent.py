"""Urgent conditions of the skin that a photo may show whatever a taxonomy knows.

A model names one of its own classes for every photo, so what it lacks has to be said beside its
answers. The list is not complete, and no clinician has reviewed it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from skindx.taxonomy import SkinClass, Taxonomy, normalise


@dataclass(frozen=True)
class UrgentCondition:
    """One condition, and how a class that stands for it is recognised."""

    name: str
    codes: str
    """Regular expression over ICD-10-CM codes, from their beginning."""
    labels: tuple[str, ...]
    """Keys, names or synonyms of a class that means the whole condition."""
    kinds: tuple[str, ...] = ()
    """Names of classes that have its code and mean one kind of it alone."""
    decides: bool = False
    """Whether no answer may give time to wait where a model does not know it.

    True for the two cancers for which NICE's guideline NG12 (2015, section 1.7) names an
    appointment within two weeks; it suggests a routine referral for basal cell carcinoma.
    """

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


URGENT_CONDITIONS = (
    UrgentCondition(
        "melanoma",
        r"C43",
        ("melanoma", "malignant melanoma", "cutaneous melanoma"),
        (
            "lentigo maligna melanoma",
            "acral lentiginous melanoma",
            "nodular melanoma",
            "superficial spreading melanoma",
            "amelanotic melanoma",
        ),
        decides=True,
    ),
    UrgentCondition(
        "squamous cell carcinoma",
        r"C44\.\d2",
        ("squamous cell carcinoma", "cutaneous squamous cell carcinoma", "scc"),
        decides=True,
    ),
    UrgentCondition("Merkel cell carcinoma", r"C4A", ("merkel cell carcinoma",)),
    UrgentCondition(
        "metastasis of another cancer", r"C79\.2", ("skin metastasis", "metastatic carcinoma")
    ),
    UrgentCondition("keratoacanthoma", r"$.", ("keratoacanthoma",)),
    UrgentCondition("shingles (herpes zoster)", r"B02", ("shingles", "herpes zoster", "zoster")),
    UrgentCondition(
        "spreading infection (cellulitis, erysipelas, necrotising fasciitis)",
        r"L03|A46|M72\.6",
        ("cellulitis", "erysipelas", "necrotising fasciitis", "necrotizing fasciitis"),
    ),
    UrgentCondition(
        "severe drug reaction", r"L27\.0|L51\.[123]", ("drug eruption", "severe drug reaction")
    ),
    UrgentCondition("erythema multiforme", r"L51\.[089]", ("erythema multiforme",)),
    UrgentCondition("pemphigus", r"L10", ("pemphigus", "pemphigus vulgaris")),
    UrgentCondition("pustular psoriasis", r"L40\.1", ("pustular psoriasis",)),
    UrgentCondition(
        "eczema herpeticum", r"B00\.0", ("eczema herpeticum", "kaposi varicelliform eruption")
    ),
    UrgentCondition(
        "meningococcal purpura",
        r"A39\.[24]",
        ("meningococcal purpura", "purpura fulminans", "meningococcemia", "meningococcal sepsis"),
    ),
    UrgentCondition(
        "angioedema",
        r"T78\.3|D84\.1",
        ("angioedema", "angioneurotic edema", "quincke edema", "hereditary angioedema"),
    ),
    UrgentCondition("syphilis", r"A5[0-3]", ("syphilis",)),
)


def unknown_urgent(taxonomy: Taxonomy) -> tuple[UrgentCondition, ...]:
    """Return the urgent conditions that none of a taxonomy's classes stands for."""
    return unknown_to(taxonomy.classes)


def unknown_to(classes: Sequence[SkinClass]) -> tuple[UrgentCondition, ...]:
    """Return the urgent conditions that none of these classes stands for."""
    return tuple(
        condition
        for condition in URGENT_CONDITIONS
        if not any(condition.is_meant_by(skin_class) for skin_class in classes)
    )
