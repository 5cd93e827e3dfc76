"""A bundle's limits as a reader sees them, and examples to try it with.

The limits stand in its index: what it may be used for, what it learned from and what it is not
for. The examples are photos of known diseases in the folder `examples` beside that of the bundle.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.text import folded_name
from skindx.core.untrusted import MEGABYTE, read_plain, read_plain_values
from skindx.data.origin import parse_licence
from skindx.imaging.resize import small_jpeg
from skindx.imaging.sandboxed_images import decode_limited
from skindx.taxonomy import SkinClass
from skindx.texts.catalogue import joined, text

MOST_WORDS = 32
"""An answer is read on a phone: what each one says of its limits is at most this long."""


def _a_line(text: str) -> str:
    """Return text that fits into a sentence: one line, no signs that a terminal would obey."""
    if not text.isprintable():
        raise ValueError("it must have no line breaks and no other invisible characters")
    if text != text.strip():
        raise ValueError("it must have no spaces at its start and end")
    return text


def _a_phrase(text: str) -> str:
    return _a_line(text.removesuffix("."))


Line = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_a_line)]
Phrase = Annotated[str, Field(min_length=1, max_length=160), AfterValidator(_a_phrase)]


_ADULT, _DARK = 18, 5
"""The age in years at which a person is no child, and the first Fitzpatrick type of dark skin."""
_ROMAN = ("", "I", "II", "III", "IV", "V", "VI")
_CHILDREN = frozenset({"child", "children", "paediatric", "pediatric", "minors"})
_MUCOSA = frozenset({"lip", "genitals"})
"""Places on the body that are mucosa, or border on it."""


def _words(phrase: str) -> set[str]:
    words = set(re.findall(r"[a-z]+", phrase.lower()))
    return words | {word.removesuffix("s") for word in words}


def _speaks_of_dark_skin(words: set[str]) -> bool:
    return "skin" in words and bool(words & {"dark", "brown", "black"})


class UseLimits(Settings):
    """What a bundle may be used for and what it is not for: each of its answers says it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    purpose: Literal["research"] = "research"
    """What it is for. No bundle of skindx is a medical device."""
    licence: Line
    """Licence of the weights: an SPDX identifier such as CC-BY-NC-4.0, or a name."""
    licence_url: str = Field("", max_length=512, pattern=r"^(https?://[!-~]+)?$")
    """Where its text stands; that of a known licence need not be given."""
    commercial: bool
    """Whether the licence and that of the images allow commercial use."""
    learned_from: Phrase
    """The end of the sentence "It learned from …", for example `dermoscopic images of pigmented
    lesions on light skin`."""
    not_for: tuple[Phrase, ...] = Field((), max_length=12)
    """Ends of the sentence "it knows nothing about …": `[children, nails, mucosa]`."""
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
            raise ValueError(
                f"the licence {self.licence} forbids commercial use; set use.commercial=false"
            )
        said = joined(self.purpose_text, self._learned(self.not_for))
        if (words := len(said.split())) > MOST_WORDS:
            raise ValueError(
                f"the sentence about use in each answer would have {words} words ({said!r}), and "
                f"the limit is {MOST_WORDS}; shorten learned_from or not_for"
            )
        return self

    @property
    def sentence(self) -> str:
        """What each answer says, at most MOST_WORDS words and what `lacking` adds."""
        return joined(self.purpose_text, self.learned)

    @property
    def purpose_text(self) -> str:
        """What it may be used for, in a sentence."""
        return text("use_research_commercial" if self.commercial else "use_research")

    @property
    def learned(self) -> str:
        """What it learned from and knows nothing about, in a sentence."""
        return self._learned(self.lacking)

    def _learned(self, lacking: tuple[str, ...]) -> str:
        if lacking:
            return text("learned_from_lacks", images=self.learned_from, lacking=lacking)
        return text("learned_from", images=self.learned_from)

    @property
    def lacking(self) -> tuple[str, ...]:
        """`not_for`, and dark skin where it learned from light skin and no phrase speaks of it."""
        spoken = any(_speaks_of_dark_skin(_words(phrase)) for phrase in self.not_for)
        if spoken or "light skin" not in self.learned_from.lower():
            return self.not_for
        return (*self.not_for, text("dark_skin"))

    def beyond(self, age: int | None, site: str | None, skin_type: int | None) -> tuple[str, ...]:
        """Return what the model knows nothing about and the facts about a person describe.

        `age` is in years, `skin_type` is Fitzpatrick's. Only what the bundle states counts.
        """
        is_child = age is not None and age < _ADULT
        is_dark = skin_type is not None and skin_type >= _DARK
        found = []
        for phrase in self.lacking:
            words = _words(phrase)
            places = _MUCOSA if words & {"mucosa", "mucosae"} else frozenset()
            of_dark_skin = phrase == text("dark_skin") or _speaks_of_dark_skin(words)
            if (
                (is_child and words & _CHILDREN)
                or (is_dark and of_dark_skin)
                or (site and (site in words or site in places))
            ):
                found.append(phrase)
        return tuple(found)

    def beyond_text(self, age: int | None, site: str | None, skin_type: int | None) -> str:
        """Return the same in sentences, each with the fact that describes it."""
        described: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
            "abstain_age": ({"age": age}, self.beyond(age, None, None)),
            "abstain_site": ({"site": site}, self.beyond(None, site, None)),
            "abstain_skin_type": (
                {"type": _ROMAN[skin_type or 0]},
                self.beyond(None, None, skin_type),
            ),
        }
        said = (text(key, **fact, names=names) for key, (fact, names) in described.items() if names)
        return joined(*said)

    @property
    def licence_text(self) -> str:
        """The licence with its address."""
        return f"{self.licence} ({self.licence_url})" if self.licence_url else self.licence

    @property
    def licensed(self) -> str:
        """Licence and citation in sentences."""
        named = text("use_licence", licence=self.licence_text)
        cite = self.citation.removesuffix(".")
        return joined(named, text("use_citation", citation=cite) if cite else "")

    @property
    def text(self) -> str:
        """The limits in sentences, for a report."""
        return f"{self.sentence} {self.licensed}"


EXAMPLES, EXAMPLE_LIST = "examples", "examples.yaml"
"""The folder beside that of a bundle, and the file in it that lists them."""
_MOST_EXAMPLES, _MOST_BYTES, _THUMBNAIL_PX = 24, 2 * MEGABYTE, 128


class Example(Settings):
    """One photo in the list of `examples.yaml`."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """File name in the folder."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    truth: Line
    """The true diagnosis: a key or name of the bundle's classes, or another condition's name."""
    truth_by: Line
    """How it was confirmed, such as histopathology."""
    credit: Line
    """Whose photo it is, and its licence."""
    note: str = Field("", max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$")
    """What a reader may learn from it."""

    def class_of(self, classes: Iterable[SkinClass]) -> SkinClass | None:
        """Return the class that is its true diagnosis; None for a condition that is none."""
        for one in classes:
            if folded_name(self.truth) in (folded_name(one.key), folded_name(one.name)):
                return one
        return None


@dataclass(frozen=True)
class ExamplePhoto:
    """An example as it lay in the folder, and as a small JPEG."""

    example: Example
    data: bytes
    thumbnail: bytes


@dataclass(frozen=True)
class Examples:
    """A bundle's examples by the SHA-256 of their files; none where it has no such folder."""

    photos: Mapping[str, ExamplePhoto] = field(default_factory=dict)

    def find(self, photos: Iterable[bytes]) -> Example | None:
        """Return the first example among the photos of a case; None where all are a person's."""
        for photo in photos if self.photos else ():
            if found := self.photos.get(hashlib.sha256(photo).hexdigest()):
                return found.example
        return None


NO_EXAMPLES = Examples()


def read_examples(bundle: Path) -> Examples:
    """Read the examples beside a bundle, each photo in a process with limits of time and memory.

    Raises UserError for a folder or file that is a link, a file with another SHA-256 than the list
    names, one of more than 2 MB, one that is no image, and a list that is none.
    """
    folder = bundle.resolve().parent / EXAMPLES
    path = folder / EXAMPLE_LIST
    if not folder.is_symlink() and not path.is_symlink() and not path.exists():
        return NO_EXAMPLES
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a link; replace it by a folder with the examples, or delete it."
        )
    values = read_plain_values(path)
    if not isinstance(values, list) or not 0 < len(values) <= _MOST_EXAMPLES:
        raise UserError(f"{path} must be a list of 1 to {_MOST_EXAMPLES} examples; correct it.")
    photos = {}
    for number, value in enumerate(values, 1):
        raw: dict[str, Any] = value if isinstance(value, dict) else {"file": value}
        example = Example.parse(raw, f"{path}, example {number}", expand=False, yaml=True)
        data = read_plain(folder / example.file, _MOST_BYTES)
        if (found := hashlib.sha256(data).hexdigest()) != example.sha256:
            raise UserError(
                f"{folder / example.file} has the SHA-256 {found[:16]}, not {example.sha256[:16]} "
                f"as in {EXAMPLE_LIST}; copy the whole folder again from its source."
            )
        try:
            small = small_jpeg(decode_limited(data), _THUMBNAIL_PX)
        except ValueError as error:
            raise UserError(
                f"the example {folder / example.file} is not an image that can be shown "
                f"({error}); remove it from {EXAMPLE_LIST}."
            ) from None
        photos[found] = ExamplePhoto(example, data, small)
    return Examples(photos)


def use_columns(use: UseLimits | None) -> dict[str, str]:
    """Return what each row says of a bundle's use; empty for one that states nothing.

    They are columns, since a comment in a CSV spoils it for spreadsheets and is lost when rows are
    sorted, filtered or joined.
    """
    return {"use": use.sentence, "licence": use.licence_text} if use else {}
