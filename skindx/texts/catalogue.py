"""Sentences of an answer by their keys: one key is one whole sentence, in YAML files a language.

A placeholder is `{name:kind}` and holds a number, a date, a name or a list of names, never a
sentence. Its kind says how it is written; the signs of a language (decimal point, months, "and")
stand in its `formats.yaml`. A sentence that a count changes has the forms `one` and `other`, which
the value `n` chooses. Another language is another folder with the same keys, and with `words.yaml`
for what English has elsewhere: names and descriptions of conditions, places, splits.

Each task and thread speaks its own language, see `speaking`: no request changes another's.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib import resources
from typing import Any, Protocol, TypeVar

import yaml

from skindx.core.errors import UserError

LANGUAGE = "en"
AUTO = "auto"
"""For a server: the language that a browser asks for."""
FORMATS = "formats"
"""The file of a language's signs."""
WORDS = "words"
"""The file of words that English has outside the catalogue, English -> the language's."""
FOLDER = resources.files("skindx.texts")
"""Holds a folder for each language."""
SCRIPTS = "js_"
"""How the keys begin of what runs in the browser."""

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


_SPOKEN = ContextVar("language", default=LANGUAGE)


def spoken() -> str:
    """Return the language that this task or thread speaks, English where nobody chose another."""
    return _SPOKEN.get()


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Speak a language in this task or thread; English for one that is not there."""
    before = _SPOKEN.set(language if language in languages() else LANGUAGE)
    try:
        yield
    finally:
        _SPOKEN.reset(before)


@cache
def languages() -> tuple[str, ...]:
    """Return the languages that have every sentence with its values, English first."""
    folders = sorted(one.name for one in FOLDER.iterdir() if one.is_dir() and one.name[0] != "_")
    whole = [one for one in folders if one != LANGUAGE and not missing(one)]
    return (LANGUAGE, *whole)


def missing(language: str) -> list[str]:
    """Return the keys that a folder lacks, has too many or has with other values."""
    if FORMATS not in _files(language):
        return [FORMATS]
    ours, theirs = sentences(LANGUAGE), sentences(language)
    others = {key for key in {*ours} & {*theirs} if ours[key].fields != theirs[key].fields}
    return sorted(({*ours} ^ {*theirs}) | others)


def checked_language(language: str, *more: str) -> str:
    """Return a language, or one of `more` words that stand for one. Raises UserError for others."""
    if language not in (*languages(), *more):
        valid = ", ".join((*languages(), *more))
        raise UserError(f"there is no language {language!r}; valid: {valid}.")
    return language


def accepted(header: str) -> str:
    """Return the language that an Accept-Language header likes most; English where it likes none.

    Of two that it likes alike it is the first.
    """
    liked: dict[str, float] = {}
    for part in header.split(","):
        tag, _, weight = part.strip().partition(";")
        language = tag.strip().lower().partition("-")[0]
        given = re.fullmatch(r"\s*q=([01](?:\.\d{0,3})?)\s*", weight or "q=1")
        if language in languages() and given and float(given[1]) > liked.get(language, 0):
            liked[language] = float(given[1])
    return max(liked, key=lambda one: liked[one], default=LANGUAGE)


def word(english: str) -> str:
    """Return a name or description that English has outside the catalogue as it is spoken.

    It stays where the language has no other, as names of a bundle's own conditions do.
    """
    return _words(spoken()).get(english, english)


def retold(stored: str, begin: str) -> str:
    """Return an English sentence that a file keeps in the spoken language.

    Its key begins with `begin`; a sentence of no such key stays as it is.
    """
    if (language := spoken()) == LANGUAGE:
        return stored
    theirs = sentences(language)
    for key, ours in sentences().items():
        if key.startswith(begin):
            for form, template in ((ours.one, theirs[key].one), (ours.other, theirs[key].other)):
                if form and (values := _values_in(stored, form)):
                    said = {name: _rewritten(value, language) for name, value in values.items()}
                    return _FIELD.sub(r"{\1}", template).format(**said)
    return stored


def _values_in(stored: str, template: str) -> dict[str, str]:
    """Return the values of a template with which a sentence was written; none for another one."""
    parts = _FIELD.split(template)  # text, name, kind, text, …
    pattern = "(.+?)".join(re.escape(part) for part in parts[::3])
    found = re.fullmatch(pattern, stored)
    return dict(zip(parts[1::3], found.groups(), strict=True)) if found else {}


def _rewritten(value: str, language: str) -> str:
    """Return a value that was written in English as another language writes it."""
    ours, theirs = _signs(LANGUAGE), _signs(language)
    for sign in ("more_than", "less_than"):
        begin = ours[sign].format("")
        if value.startswith(begin):
            return str(theirs[sign]).format(_rewritten(value.removeprefix(begin), language))
    if re.fullmatch(r"[\d,.−-]+( %)?", value):
        return value.translate({ord(ours[one]): theirs[one] for one in ("decimal", "thousands")})
    return _name(value, theirs)


def text(key: str, /, **values: Any) -> str:
    """Return a sentence with its values. Raises CatalogueError, which is an error of the code."""
    return text_in(spoken(), key, values)


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
        value = values[field[1]]
        if isinstance(value, str):
            value = signs[WORDS].get(f"{field[1]} {value}", value)
        return KINDS[field[2]](value, signs)

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

    @property
    def fields(self) -> set[str]:
        """The same with their kinds, and `n` where it chooses the form."""
        kinds = {f"{name}:{kind}" for name, kind in _FIELD.findall(self.one + self.other)}
        return kinds | {"n"} if self.one else kinds


@cache
def sentences(language: str = LANGUAGE) -> Mapping[str, Sentence]:
    """Return all sentences of a language. Raises CatalogueError for a file that breaks a rule."""
    table: dict[str, Sentence] = {}
    for name, entries in _files(language).items():
        if name in (FORMATS, WORDS):
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


def script_sentences() -> dict[str, Any]:
    """Return the sentences of the page's scripts as JSON has them, with what writes their values.

    A placeholder is `{name}` there: a script gives numbers, names and lists of names alone.
    """
    language = spoken()
    forms = {
        key: {
            "one": _FIELD.sub(r"{\1}", sentence.one),
            "other": _FIELD.sub(r"{\1}", sentence.other),
        }
        for key, sentence in sentences(language).items()
        if key.startswith(SCRIPTS)
    }
    return {"language": language, "and": _signs(language)["and"], "sentences": forms}


@cache
def _signs(language: str) -> Mapping[str, Any]:
    return {**_files(language)[FORMATS], WORDS: _words(language)}


@cache
def _words(language: str) -> Mapping[str, str]:
    return _files(language).get(WORDS, {})


@cache
def _files(language: str) -> dict[str, dict[str, Any]]:
    files = sorted((FOLDER / language).iterdir(), key=lambda one: one.name)
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
    exact = Decimal(repr(round(float(value), 9)))  # without the noise of 100 * 0.285
    rounded = exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    grouped = abs(value) >= signs.get("thousands_from", 0)
    whole = f"{rounded:,f}" if grouped else f"{rounded:f}"
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
    if not shown.digits:
        return _percent(shown.share, signs)
    if 0 < 100 * shown.share < 0.5 * 10**-shown.digits:
        least = str(signs["percent"]).format(_decimals(10**-shown.digits, shown.digits, signs))
        return str(signs["less_than"]).format(least)
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
    name = _of(str, value)
    return str(signs[WORDS].get(name, name))


def _list(value: Sequence[str], signs: Signs, last: str = "and") -> str:
    *before, end = [_name(one, signs) for one in value]
    if not before:
        return end
    sounds = signs.get(f"{last}_before", {}).items()  # Spanish "y" is "e" before the sound of i
    other = (sign for sound, sign in sounds if re.match(sound, end, re.IGNORECASE))
    return f"{', '.join(before)}{next(other, signs[last])}{end}"


def _shares(value: Sequence[tuple[str, float]], signs: Signs) -> str:
    """Write names with their shares, the first few of them, and the others together."""
    listed = [f"{_name(name, signs)} {_cell(share, signs)}" for name, share in value[:_NAMED]]
    if rest := value[_NAMED:]:
        together = _cell(sum(share for _, share in rest), signs)
        listed.append(f"{str(signs['more']).format(len(rest))} {together}")
    return _list(listed, signs)


def _date(value: Any, signs: Signs, letters: int | None = None) -> str:
    day = _of(date if letters else datetime, value)
    month = signs["months"][day.month - 1][:letters]
    return str(signs["date"]).format(day=day.day, month=month, year=day.year)


def _day(value: Any, signs: Signs) -> str:
    """Write a day as a list does, with the first letters of its month."""
    return _date(value, signs, 3)


def _time(value: Any, signs: Signs, clock: str = "%H:%M") -> str:
    when = _of(datetime, value)
    return f"{_date(when, signs)}, {when:{clock} %Z}".strip()


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
    "tally": lambda tally, signs: _list([f"{n} {_name(one, signs)}" for one, n in tally], signs),
    "date": _date,
    "time": _time,
    "seconds": lambda value, signs: _time(value, signs, "%H:%M:%S"),
    "day": _day,
    "moment": lambda value, signs: f"{_day(value, signs)}, {_of(datetime, value):%H:%M %Z}".strip(),
    "cell": _cell,
}
"""How a value is written, by the kind of its placeholder."""


def percent(probability: float) -> str:
    """Return a probability as a table shows it: whole percent, never 0 or 100.

    No validation split is large enough to tell 99.5 % from certainty.
    """
    return _cell(probability, _signs(spoken()))


def count_text(count: int) -> str:
    """Return a whole number."""
    return _count(count, _signs(spoken()))


def share_text(share: MeasuredShare) -> str:
    """Return a measured share with its interval and the number of images behind it."""
    return _share(share, _signs(spoken()))


def told_apart(one: float, other: float) -> tuple[Digits, Digits]:
    """Return a share and its threshold for the kind `risk`, with enough digits to tell them apart.

    That is whole percent, as lists write probabilities, or else decimals.
    """
    if other >= 0.01 and (one == other or round(100 * one) != round(100 * other)):
        return Digits(one, 0), Digits(other, 0)
    same = f"{100 * one:.1f}" == f"{100 * other:.1f}"
    digits = 3 if same and one != other else 1
    return Digits(one, digits), Digits(other, digits)


def joined(*parts: str | None) -> str:
    """Return sentences one after the other, without those that are empty."""
    return " ".join(part for part in parts if part)
