"""What a patient agreed to: keeping, comparing and training are three consents.

The text that stands in a case is what was agreed to, word by word; what it allows is read from it.
A text that is changed here goes to the older ones, so that no case is read wider than it was given.
"""

from collections.abc import Collection
from typing import Literal

Purpose = Literal["keep", "compare", "train"]
PURPOSES: tuple[Purpose, ...] = ("keep", "compare", "train")

CASE_CONSENTS: dict[Purpose, str] = {
    "keep": (
        "The patient agrees that these photos and this answer are kept in this case book under a "
        "pseudonym; they may be deleted at any time."
    ),
    "compare": "They may be compared with earlier and later photos of the same place.",
    "train": (
        "Once a clinician has confirmed a diagnosis, the photos and that diagnosis may be used to "
        "train a model."
    ),
}
"""Sentences that a form shows one by one; the text of a case joins those that were agreed to."""

SCAN_CONSENTS: dict[Purpose, str] = {
    "keep": (
        "The patient agrees that a small copy of these photos, the lesions on them and this result "
        "are kept in this case book under a pseudonym; they may be deleted at any time."
    ),
    "compare": "They may be compared with earlier and later scans of the same view.",
}

_OLDER: dict[str, tuple[Purpose, ...]] = {
    "The patient agrees that these photos and this answer are kept in this case book under a "
    "pseudonym, are compared with later ones, and, once a clinician has confirmed a diagnosis, "
    "may be used to train this model. They may be deleted at any time.": PURPOSES,
    "The patient agrees that a small copy of these photos, the lesions on them and this result are "
    "kept in this case book under a pseudonym and are compared with later scans. They may be "
    "deleted at any time.": ("keep", "compare"),
}
"""Texts of older versions, each one consent to several purposes."""


def consent_text(consents: dict[Purpose, str], purposes: Collection[Purpose]) -> str:
    """Return the sentences of the purposes that were agreed to, in their order."""
    return " ".join(text for purpose, text in consents.items() if purpose in purposes)


def purposes_of(text: str) -> frozenset[Purpose]:
    """Return what a consent covers; a text that is not known covers keeping alone."""
    if text in _OLDER:
        return frozenset(_OLDER[text])
    covered = {
        purpose
        for consents in (CASE_CONSENTS, SCAN_CONSENTS)
        for purpose, sentence in consents.items()
        if sentence in text
    }
    return frozenset({"keep", *covered})
