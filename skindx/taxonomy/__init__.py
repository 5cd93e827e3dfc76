"""The classes of a dataset: names, codes, synonyms, urgency; five lists come along."""

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.text import is_word_sign
from skindx.core.untrusted import read_plain_yaml
from skindx.taxonomy.lexicon import (
    LEXICON,
    NameIndex,
    Rule,
    abbreviations,
    heading_of,
    is_one_name,
    normalise,
    older_form,
)
from skindx.texts.catalogue import joined, text

__all__ = [
    "SkinClass",
    "Taxonomy",
    "Urgency",
    "advice_for",
    "load_taxonomy",
    "normalise",
    "taxonomy_names",
]

Urgency = Literal["routine", "soon", "urgent", "unknown"]


def advice_for(step: str) -> str:
    """Return the advice of an urgency, or of `soon_without_time`, `without_time` and the like.

    It says in sentences what to do, and when to do it sooner. `urgent_cancer` and `soon_cancer` are
    for cancers alone, of which no fever or spreading redness is a sign. `soon_now` and `now` are
    never weaker than the next step after a refusal.
    """
    sooner = "" if step in ("unknown", "urgent_cancer") else text(f"advice_{step}_sooner")
    return joined(text(f"advice_{step.removesuffix('_cancer')}"), sooner)


class SkinClass(Settings):
    """One class; `key` is its label in manifests and bundles and its folder's name."""

    key: str
    name: str = Field(min_length=1)
    """The class's name as shown to people."""
    icd10: str = Field("", pattern=r"^([A-Z]\d[0-9A-Z](\.[0-9A-Z]{1,4})?)?$")
    """ICD-10-CM code with its dot; empty where there is none."""
    urgency: Urgency = "unknown"
    description: str = ""
    """One line in plain words."""
    synonyms: tuple[str, ...] = ()
    """Labels of other data sets that mean this class."""

    @field_validator("key")
    @classmethod
    def _is_a_name(cls, key: str) -> str:
        if not key or key[0] in "_-" or any(not _fits_a_key(char) for char in key):
            raise ValueError(
                "a key has only letters, digits, _ and -, and begins with a letter or digit; "
                "correct it, and write other characters into `name`"
            )
        return key

    @property
    def is_cancer(self) -> bool:
        """Whether its code is that of a cancer, or of one in situ of the skin."""
        return self.icd10.startswith(("C", "D03", "D04"))

    @property
    def advice(self) -> str:
        """The next step in a sentence."""
        return advice_for(self.urgency)


def _fits_a_key(char: str) -> bool:
    # Joiners and other connectors than _ were allowed by older versions.
    return char == "-" or is_word_sign(char) or unicodedata.category(char) == "Pc" or char in _JOIN


_JOIN = "\u200c\u200d"


def _labels(skin_class: SkinClass) -> tuple[str, ...]:
    return (skin_class.key, skin_class.name, *skin_class.synonyms)


class Taxonomy(Settings):
    """An ordered list of classes in which no label can mean two of them."""

    name: str
    title: str
    reviewed_by: str | None = None
    """The clinician who signed names, codes and urgencies; None: no clinician did."""
    classes: tuple[SkinClass, ...] = Field(min_length=1, max_length=10_000)
    unmapped: Mapping[str, str] = Field(default_factory=dict)
    """Labels of other data sets that mean none of the classes, each with the reason."""

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        sets: Iterable[str] = (),
        *,
        start: dict[str, Any] | None = None,
    ) -> Self:
        """Read a YAML file, which is untrusted: no aliases, no environment variables."""
        if path is None or sets:
            return super().load(path, sets, start=start)
        return cls.parse(read_plain_yaml(path), str(path), expand=False, yaml=True)

    @model_validator(mode="after")
    def _labels_mean_one_class(self) -> Self:
        for key, times in Counter(self.keys).items():
            if times > 1:
                raise ValueError(f"two classes have the key {key!r}; rename or remove one of them")
        owner: dict[str, str] = {}
        for skin_class in self.classes:
            for label in _labels(skin_class):
                if not normalise(label):
                    raise ValueError(
                        f"the label {label!r} of {skin_class.key} has no letter or digit; correct "
                        "it"
                    )
                # Not `normalise`: a dataset of an older version may have both DERİ and deri.
                other = owner.setdefault(older_form(label), skin_class.key)
                if other != skin_class.key:
                    raise ValueError(
                        f"the label {label!r} belongs to both {other} and {skin_class.key}; "
                        "remove it from one of them"
                    )
        for label, reason in self.unmapped.items():
            claimant = owner.get(older_form(label))
            if claimant:
                raise ValueError(
                    f"the label {label!r} is in `unmapped` but also belongs to {claimant}; remove "
                    "it from one of them"
                )
            if not reason.strip():
                raise ValueError(f"the unmapped label {label!r} has no reason; write one")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(skin_class.key for skin_class in self.classes)

    @property
    def review_note(self) -> str:
        """Whether a clinician has checked this taxonomy, in words."""
        if self.reviewed_by is None:
            return "not clinically reviewed"
        return f"clinically reviewed by {self.reviewed_by}"

    def find(self, label: str) -> SkinClass | None:
        """Return the class that a label means by key, name or synonym, None for an unmapped label.

        Case, spaces, hyphens, underscores and other punctuation do not count.
        """
        return self._by_label.get(label) or self._by_label.get(normalise(label))

    def recognise(self, label: str) -> SkinClass | None:
        """Return the class that a label means, None for none, for several and for an unmapped one.

        Beside what `find` knows: accents, a plural, and of several words endings and order do not
        count; then names in Latin, German, French and Spanish, abbreviations of public data sets
        and ICD codes count as well.
        """
        return self.recognise_by(label)[0]

    def recognise_by(self, label: str) -> tuple[SkinClass | None, Rule]:
        """Return what `recognise` does, and how the label was matched."""
        exact = self.find(label)
        if exact and (is_one_name(label) or not all(map(is_one_name, _labels(exact)))):
            titles = {normalise(exact.key), normalise(exact.name)}
            if normalise(label) in titles:
                return exact, "its name"
            short = normalise(label) in abbreviations()
            return exact, "an abbreviation" if short else "a synonym"
        if self.why_unmapped(label):
            return None, "its name"
        key, rule = self._names.find(label)
        if not key:
            heading, rule = heading_of(label)
            key = self._names.find(heading)[0]
        return (self[key] if key else None), rule

    def why_unmapped(self, label: str) -> str:
        """Return why a label was decided to mean none of the classes, "" if there is none."""
        return self._reasons.get(normalise(label), "")

    def __getitem__(self, key: str) -> SkinClass:
        """Return the class of an exact key. Raises UserError for any other."""
        for skin_class in self.classes:
            if skin_class.key == key:
                return skin_class
        near = difflib.get_close_matches(key, self.keys, n=3, cutoff=0.0)
        raise UserError(
            f"{key!r} is not a class of the taxonomy {self.name}; did you mean {', '.join(near)}?"
        )

    def subset(self, keys: Iterable[str]) -> Self:
        """Return only the classes named, in this taxonomy's order.

        Raises UserError for an unknown key and for no key at all.
        """
        kept = {self[key].key for key in keys}
        if not kept:
            raise UserError(
                f"no class of the taxonomy {self.name} is left; give at least one of its classes."
            )
        classes = tuple(skin_class for skin_class in self.classes if skin_class.key in kept)
        # Not model_copy: it would carry the label index of all classes along.
        return type(self)(
            name=self.name, title=self.title, reviewed_by=self.reviewed_by, classes=classes
        )

    @cached_property
    def _by_label(self) -> dict[str, SkinClass]:
        exact = dict(self._labels)
        return {normalise(label): each for label, each in reversed(self._labels)} | exact

    @cached_property
    def _names(self) -> NameIndex:
        """Return the names of all classes; what is unmapped stands among them as a class of "".

        An unmapped label may differ from a name in its endings or the order of its words alone.
        """
        names = [(label, "", "") for label in self.unmapped]
        names += [(label, "", skin_class.key) for label, skin_class in self._labels]
        return NameIndex.from_names(names)

    @property
    def _labels(self) -> list[tuple[str, SkinClass]]:
        return [(label, skin_class) for skin_class in self.classes for label in _labels(skin_class)]

    @cached_property
    def _reasons(self) -> dict[str, str]:
        return {normalise(label): reason for label, reason in self.unmapped.items()}


def taxonomy_names() -> tuple[str, ...]:
    """Return the names of the taxonomies that come with the package."""
    files = {file.name for file in resources.files(__name__).iterdir()} - {LEXICON}
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def load_taxonomy(name_or_path: str | Path) -> Taxonomy:
    """Load a taxonomy of the package by its name, or any other from a YAML file.

    Raises UserError for an unknown name, a missing file and an invalid taxonomy.
    """
    text = str(name_or_path)
    names = taxonomy_names()
    if text in names:
        with resources.as_file(resources.files(__name__) / f"{text}.yaml") as file:
            return Taxonomy.load(file)
    if isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        return Taxonomy.load(Path(name_or_path))
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.0)[0]
    raise UserError(
        f"there is no taxonomy {text!r}; did you mean {near!r}? "
        f"Valid: {', '.join(names)}, or the path of a .yaml file."
    )


@dataclass(frozen=True)
class UrgentCondition:
    """An urgent condition that a photo may show, and how a class that stands for it is recognised.

    A model names one of its own classes for every photo, so what it lacks has to be said beside its
    answers. The list, `tables/urgent.yaml`, is not complete, and no clinician has reviewed it.
    """

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
        labels = (*self.labels, *(_ANY_CANCER if self.codes.startswith("C") else ()))
        if names & {normalise(label) for label in labels}:
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


@cache
def urgent_conditions() -> tuple[UrgentCondition, ...]:
    text = (Path(__file__).parent / "tables" / "urgent.yaml").read_text(encoding="utf-8")
    return tuple(UrgentCondition(name, **row) for name, row in yaml.safe_load(text).items())


def unknown_urgent(taxonomy: Taxonomy) -> tuple[UrgentCondition, ...]:
    """Return the urgent conditions that none of a taxonomy's classes stands for."""
    return unknown_to(taxonomy.classes)


def urgent_known(classes: Sequence[SkinClass]) -> bool:
    """Return whether any class is urgent; without one, nothing can be said of urgency."""
    return any(skin_class.urgency == "urgent" for skin_class in classes)


def unknown_to(classes: Sequence[SkinClass]) -> tuple[UrgentCondition, ...]:
    """Return the urgent conditions that none of these classes stands for."""
    return tuple(
        condition
        for condition in urgent_conditions()
        if not any(condition.is_meant_by(skin_class) for skin_class in classes)
    )
