"""Sentences of an answer by their keys: one key is one whole sentence, in YAML files a language.

A placeholder is `{name:kind}` and holds a number, a date, a name or a list of names, never a
sentence. Its kind says how it is written; the signs of a language (decimal point, months, "and")
stand in its `formats.yaml`. A sentence that a count changes has the forms `one` and `other`, which
the value `n` chooses. Another language is another folder with the same keys.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Protocol, TypeVar

import yaml

LANGUAGE = "en"
FORMATS = "formats"
"""The file of a language's signs; all others hold sentences."""

_NAMED = 5
"""Names with shares that a sentence lists."""
_FIELD = re.compile(r"\{([a-z_]+):([a-z0-9_]+)\}")
_T = TypeVar("_T")


class MeasuredShare(Protocol):
    """A share with its 95 % interval and the images behind it."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def pictures(self) -> int: ...


@dataclass(frozen=True)
class Digits:
    """A share that is written with so many digits, so that it can be told from another."""

    share: float
    digits: int


class CatalogueError(Exception):
    """A key or a placeholder that the code and the catalogue do not have both."""


def text(key: str, /, **values: Any) -> str:
    """Return a sentence with its values. Raises CatalogueError, which is an error of the code."""
    return text_in(LANGUAGE, key, values)


def text_in(language: str, key: str, values: Mapping[str, Any]) -> str:
    """Return the same in a language."""
    sentence = sentences(language).get(key)
    if sentence is None:
        raise CatalogueError(f"the catalogue has no sentence {key!r}")
    if values.keys() != sentence.placeholders:
        needed, given = sorted(sentence.placeholders), sorted(values)
        raise CatalogueError(f"the sentence {key!r} takes {needed}, not {given}")
    template = sentence.one if sentence.one and values.get("n") == 1 else sentence.other
    signs = _signs(language)

    def written(field: re.Match[str]) -> str:
        return KINDS[field[2]](values[field[1]], signs)

    return _FIELD.sub(written, template)


@dataclass(frozen=True)
class Sentence:
    """One entry of the catalogue."""

    other: str
    one: str = ""
    """The form for n = 1; empty: no count changes the sentence."""

    @property
    def placeholders(self) -> set[str]:
        """Names of the values that it takes."""
        named = {name for name, _ in _FIELD.findall(self.one + self.other)}
        return named | {"n"} if self.one else named


@cache
def sentences(language: str = LANGUAGE) -> Mapping[str, Sentence]:
    """Return all sentences of a language. Raises CatalogueError for a file that breaks a rule."""
    table: dict[str, Sentence] = {}
    for name, entries in _files(language).items():
        if name == FORMATS:
            continue
        for key, entry in entries.items():
            forms = entry if isinstance(entry, dict) else {"other": entry}
            if key in table or not {"other"} <= forms.keys() <= {"one", "other"}:
                raise CatalogueError(f"the entry {key!r} of {name} is there twice, or has no form")
            table[key] = sentence = Sentence(**forms)
            unknown = {kind for _, kind in _FIELD.findall(sentence.one + sentence.other)} - {*KINDS}
            rest = _FIELD.sub("", sentence.one + sentence.other)
            if unknown or "{" in rest or "}" in rest:
                raise CatalogueError(f"the entry {key!r} of {name} has an unknown placeholder")
    return table


@cache
def _signs(language: str) -> Mapping[str, Any]:
    return _files(language)[FORMATS]


@cache
def _files(language: str) -> dict[str, dict[str, Any]]:
    folder = resources.files("skindx.texts") / language
    files = sorted((one for one in folder.iterdir()), key=lambda one: one.name)
    return {
        one.name.removesuffix(".yaml"): yaml.safe_load(one.read_text(encoding="utf-8"))
        for one in files
        if one.name.endswith(".yaml")
    }


Signs = Mapping[str, Any]


def _of(kind: type[_T] | tuple[type[_T], ...], value: Any) -> _T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CatalogueError(f"{value!r} is no value of this kind")
    return value


def _decimals(value: float, digits: int, signs: Signs) -> str:
    whole = f"{value:,.{digits}f}"
    return whole.translate({ord(","): signs["thousands"], ord("."): signs["decimal"]})


def _count(value: Any, signs: Signs) -> str:
    return _decimals(_of(int, value), 0, signs)


def _percent(value: Any, signs: Signs, most: str = "more_than", least: str = "less_than") -> str:
    share = float(_of((int, float), value))
    if share > 0.99:
        return str(signs[most]).format(str(signs["percent"]).format(99))
    if share < 0.01:
        return str(signs[least]).format(str(signs["percent"]).format(1))
    return str(signs["percent"]).format(_decimals(100 * share, 0, signs))


def _cell(value: Any, signs: Signs) -> str:
    return _percent(value, signs, "above", "below")


def _of_100(value: Any, signs: Signs) -> str:
    share = float(_of((int, float), value))
    if 0 < share < 0.005:
        return str(signs["fewer_than"]).format(1)
    if 0.995 < share < 1:
        return str(signs["more_than"]).format(99)
    return _decimals(100 * share, 0, signs)


def _risk(value: Any, signs: Signs) -> str:
    shown = _of(Digits, value)
    return str(signs["percent"]).format(_decimals(100 * shown.share, shown.digits, signs))


def _share(value: MeasuredShare, signs: Signs) -> str:
    """Write a share and its interval with as many digits as tell the interval's ends apart."""
    ends = 100 * value.low, 100 * value.high
    apart = (n for n in (1, 2, 3) if f"{ends[0]:.{n}f}" != f"{ends[1]:.{n}f}")
    digits = next(apart, 4)
    figures = (_decimals(one, digits, signs) for one in (100 * value.value, *ends))
    form = "share_of_one" if value.pictures == 1 else "share"
    return str(signs[form]).format(*figures, _count(value.pictures, signs))


def _number(value: Any, signs: Signs) -> str:
    return f"{float(_of((int, float), value)):g}".replace(".", signs["decimal"])


def _decimal(value: Any, signs: Signs) -> str:
    return _decimals(float(_of((int, float), value)), 2, signs)


def _signed(value: Any, signs: Signs) -> str:
    return _decimals(float(_of((int, float), value)), 3, signs).replace("-", "−")


def _name(value: Any, signs: Signs) -> str:
    return _of(str, value)


def _list(value: Sequence[str], signs: Signs, last: str = "and") -> str:
    *before, end = [_of(str, one) for one in value]
    return f"{', '.join(before)}{signs[last]}{end}" if before else end


def _shares(value: Sequence[tuple[str, float]], signs: Signs) -> str:
    """Write names with their shares, the first few of them, and the others together."""
    listed = [f"{name} {_cell(share, signs)}" for name, share in value[:_NAMED]]
    if rest := value[_NAMED:]:
        together = _cell(sum(share for _, share in rest), signs)
        listed.append(f"{str(signs['more']).format(len(rest))} {together}")
    return _list(listed, signs)


def _date(value: Any, signs: Signs) -> str:
    day = _of(datetime, value)
    values = {"day": day.day, "month": signs["months"][day.month - 1], "year": day.year}
    return str(signs["date"]).format(**values)


def _time(value: Any, signs: Signs) -> str:
    when = _of(datetime, value)
    return f"{_date(when, signs)}, {when:%H:%M %Z}".strip()


KINDS: dict[str, Callable[[Any, Signs], str]] = {
    "count": _count,
    "number": _number,
    "decimal": _decimal,
    "signed": _signed,
    "percent": _percent,
    "of100": _of_100,
    "risk": _risk,
    "share": _share,
    "name": _name,
    "names": _list,
    "either": lambda value, signs: _list(value, signs, "or"),
    "shares": _shares,
    "date": _date,
    "time": _time,
    "cell": _cell,
}
"""How a value is written, by the kind of its placeholder."""


def percent(probability: float, language: str = LANGUAGE) -> str:
    """Return a probability as a table shows it: whole percent, never 0 or 100.

    No validation split is large enough to tell 99.5 % from certainty.
    """
    return _cell(probability, _signs(language))


def share_text(share: MeasuredShare, language: str = LANGUAGE) -> str:
    """Return a measured share with its interval and the number of images behind it."""
    return _share(share, _signs(language))


def told_apart(one: float, other: float) -> tuple[Digits, Digits]:
    """Return two shares for the kind `risk`, with enough digits to distinguish them."""
    same = f"{100 * one:.1f}" == f"{100 * other:.1f}"
    digits = 3 if same and one != other else 1
    return Digits(one, digits), Digits(other, digits)


def joined(*parts: str | None) -> str:
    """Return sentences one after the other, without those that are empty."""
    return " ".join(part for part in parts if part)
