"""What a bundle may be used for, what it learned from and what it is not for, in its index."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from skindx.core.settings_base import Settings
from skindx.data.origin import parse_licence

MOST_WORDS = 30
"""An answer is read on a phone: what each one says of its limits is at most this long."""


def _a_line(text: str) -> str:
    """Return text that fits into a sentence: one line, no signs that a terminal would obey."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("write it in one line, without blanks at its ends")
    return text


def _a_phrase(text: str) -> str:
    return _a_line(text.removesuffix("."))


Line = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_a_line)]
Phrase = Annotated[str, Field(min_length=1, max_length=160), AfterValidator(_a_phrase)]


class UseLimits(Settings):
    """What a bundle may be used for and what it is not for: each of its answers says it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    purpose: Literal["research"] = "research"
    """What it is for. No bundle of skindx is a medical device."""
    licence: Line
    """Under which the weights may be used: an SPDX identifier such as CC-BY-NC-4.0, or a name."""
    licence_url: str = Field("", max_length=512, pattern=r"^(https?://[!-~]+)?$")
    """Where its text stands; that of a known licence need not be given."""
    commercial: bool
    """Whether the licence and that of the images allow commercial use."""
    learned_from: Phrase
    """As it goes on after "It learned from": `dermoscopic images of pigmented lesions on light
    skin`."""
    not_for: tuple[Phrase, ...] = Field((), max_length=12)
    """As it goes on after "it knows nothing about": `[children, nails, mucosa]`."""
    citation: str = Field("", max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")
    """The publication that whoever uses it has to cite."""

    @model_validator(mode="before")
    @classmethod
    def _with_its_url(cls, raw: object) -> object:
        if not isinstance(raw, dict) or raw.get("licence_url"):
            return raw
        return {**raw, "licence_url": parse_licence(str(raw.get("licence", ""))).url}

    @model_validator(mode="after")
    def _can_be_said(self) -> Self:
        if self.commercial and parse_licence(self.licence).non_commercial:
            raise ValueError(f"licence {self.licence} forbids commercial use; set commercial=false")
        if (words := len(self.sentence.split())) > MOST_WORDS:
            raise ValueError(
                f"each answer would say {words} words of it ({self.sentence!r}), and at most "
                f"{MOST_WORDS} are read; shorten learned_from or not_for"
            )
        return self

    @property
    def sentence(self) -> str:
        """What each answer of the bundle says, at most MOST_WORDS words."""
        allowed = "" if self.commercial else ", not for commercial use"
        *first, last = self.not_for or ("",)
        lacking = f"{', '.join(first)} or {last}" if first else last
        lacks = f"; it knows nothing about {lacking}" if lacking else ""
        return f"For {self.purpose}{allowed}. It learned from {self.learned_from}{lacks}."

    @property
    def licence_text(self) -> str:
        """The licence with its address."""
        return f"{self.licence} ({self.licence_url})" if self.licence_url else self.licence

    @property
    def text(self) -> str:
        """All of it in sentences, for a report."""
        cite = f" Citation: {self.citation.removesuffix('.')}." if self.citation else ""
        return f"{self.sentence} Licence of the weights: {self.licence_text}.{cite}"
