"""What a cell of a table says: text, truth values, splits, dates."""

import datetime
import math
import re
from typing import Any

from skindx.core.text import folded_name
from skindx.data.manifest import Split

LONGEST = 10_000
"""Characters of an untrusted text; no name or licence is longer."""

_TRUTHS = {
    True: "true t yes y 1 ja wahr oui vrai si sí verdadero sim sì vero x",
    False: "false f no n 0 nein falsch non faux falso nao não",
}
_SPLITS: dict[Split, str] = {
    "train": "train training trn",
    "val": "val valid validation dev development",
    "calibration": "calibration calib cal",
    "test": "test testing tst holdout evaluation",
}
_SPLIT_OF = {word: split for split, words in _SPLITS.items() for word in words.split()}
_TRUTH_OF = {word: truth for truth, words in _TRUTHS.items() for word in words.split()}


_LEADING_ZERO = re.compile(r"[+-]?0\d")


def cell(value: object) -> str:
    """Return a value as text, at most LONGEST of it: "" for none and not-a-number, 3.0 as "3"."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()[:LONGEST]


def no_formula(value: object) -> object:
    """Keep a spreadsheet from computing untrusted text that is written as a cell."""
    if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value


def without_mark(text: str) -> str:
    """Return the text of a cell that `no_formula` may have marked."""
    return text[1:] if no_formula(text[1:]) == text else text


def truth(value: object) -> bool | None:
    """Return what a cell says as a truth value (True, 1.0, ja, oui, si); None for all else."""
    text = cell(value)
    number = number_of(text)
    if number is not None:
        return {0.0: False, 1.0: True}.get(number)
    return _TRUTH_OF.get(folded_name(text))


def split_of(text: str) -> Split | None:
    """Return the split that a cell or a folder names; None for all else, such as a fold."""
    return _SPLIT_OF.get(folded_name(text))


def number_of(text: str) -> float | None:
    """Return a finite number, also with a decimal comma; None for all else."""
    head, comma, tail = text.strip().partition(",")
    if comma and head.lstrip("+-").isdecimal() and tail.isdecimal():
        text = f"{head}.{tail}"
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def same_value(one: object, other: object) -> bool:
    """Tell whether two cells say the same: as text, as numbers (3, 3.0 and "3,0")."""
    first, second = cell(one), cell(other)
    if first == second or folded_name(first) == folded_name(second):
        return True
    number = number_of(first)
    return number is not None and number == number_of(second)


def as_matched(value: object) -> str:
    """Return a cell as keys and wanted values are compared: 7, 7.0 and "7" are one."""
    text = cell(value)
    number = number_of(text) if len(text) <= 15 else None
    # 007 is an id and not the number 7.
    if number is None or not number.is_integer() or _LEADING_ZERO.match(text):
        return folded_name(text)
    return str(int(number))


def date_text(serial: float, base_1904: bool) -> str | None:
    """Return a workbook's number of days as a date, with a time where it has one; None: none."""
    if base_1904:
        base = datetime.datetime(1904, 1, 1)
    else:  # its first year was taken for a leap year
        base = datetime.datetime(1899, 12, 31 if serial < 60 else 30)
    try:
        moment = base + datetime.timedelta(seconds=round(serial * 86_400))
    except (OverflowError, ValueError):
        return None
    if 0 <= serial < 1:
        return moment.time().isoformat()
    if moment.time() == datetime.time():
        return moment.date().isoformat()
    return moment.isoformat(" ")


def plain_value(value: Any) -> Any:
    """Return a value of Arrow as a cell's: dates as ISO text, and no text longer than LONGEST."""
    if isinstance(value, str):
        return value[:LONGEST]
    if isinstance(value, datetime.datetime):
        midnight = value.time() == datetime.time() and value.tzinfo is None
        return value.date().isoformat() if midnight else value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value
