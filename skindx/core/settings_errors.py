"""What is wrong with settings, in the words of who writes YAML: pydantic's errors as sentences."""

import difflib
import json
import re
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from skindx.core.errors import UserError
from skindx.core.text import without_password

_MOST_ERRORS, _MOST_SHOWN = 100, 6
_UNKNOWN, _REMOVED = "extra_forbidden", "removed"


def removed_error(said: str) -> PydanticCustomError:
    """Return the error of a key that is gone; `said` is all that is told of it."""
    return PydanticCustomError(_REMOVED, "{said}", {"said": said})


def what_is_wrong(
    cls: type[BaseModel],
    error: ValidationError,
    origin: str,
    assigned: Sequence[str] = (),
    *,
    by_hand: bool = True,
) -> str:
    """Return all that is wrong, the causes first; of many mistakes the first and their number.

    `origin` names the file; what is wrong at or below an `assigned` key came from --set. A file
    that nobody wrote by hand (a bundle's) is to be copied again, not to be corrected.
    """
    # A file that is wrong in each of its lines need not have all of them compared.
    errors = error.errors(include_url=False)[:_MOST_ERRORS]
    unknown = {item["loc"] for item in errors if item["type"] == _UNKNOWN}
    if other := next((file for key, file in _FILES.items() if (key,) in unknown), ""):
        needed = next((file for key, file in _FILES.items() if key in cls.model_fields), "")
        return f"{origin} contains {other}; give {needed or 'another file'}."
    causes = [item for item in errors if not _follows(item, errors)]
    causes.sort(key=lambda item: (item["type"] != _REMOVED, item["type"] != _UNKNOWN))
    places: dict[
        str, list[Any]
    ] = {}  # a value that fits none of several types has an error of each
    for item in causes:
        places.setdefault(".".join(_place(cls, item["loc"])[0]), []).append(item)
    told: list[str] = []
    listed: set[str] = set()
    for where, items in list(places.items())[:_MOST_SHOWN]:
        is_set = any(f"{where}.".startswith(f"{key}.") for key in assigned)
        told.append(f"{'--set' if is_set else origin}: {_at(cls, where, items, listed)}")
    more = len(places) - len(told)
    said = " Also ".join(told) + (f" There are {more} more mistakes." if more else "")
    # A UserError says what to do, such as to install what is missing here.
    says_all = any(isinstance(item.get("ctx", {}).get("error"), UserError) for item in causes)
    return said if by_hand or says_all else f"{said} {_COPY}"


def _at(cls: type[BaseModel], where: str, items: Sequence[Any], listed: set[str]) -> str:
    """Return what is wrong at one place; valid keys of a mapping are `listed` once."""
    first = items[0]
    loc = first["loc"]
    if first["type"] == _REMOVED:
        return f"{first['msg']}."
    if first["type"] == _UNKNOWN:
        return _unknown_key(cls, where, loc, listed)
    if first["type"] == "missing":
        return f"{where!r} is missing; add it."
    if first["type"] == "union_tag_invalid":
        valid = re.findall(r"'([^']+)'", first["ctx"]["expected_tags"])
        hint = _nearest(str(first["ctx"]["tag"]), valid)
        name = first["ctx"]["discriminator"].strip("'")
        tag = f"{first['ctx']['tag']!r} is not a valid {name}"
        return f"{where!r}: {tag}; {hint}Valid: {', '.join(valid)}."
    message = ", or ".join(dict.fromkeys(map(_plainly, items)))
    if not loc and isinstance(first["input"], dict):  # of several settings, which it names itself
        return f"{message}."
    shown = without_password(_as_written(first["input"]))
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{where or 'value'!r} = {shown}: {message}."


def _as_written(value: Any) -> str:
    """Return a value as YAML and JSON write it: true, null, {"a": 1}."""
    if value is None or isinstance(value, bool | dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return repr(value)


def _unknown_key(
    cls: type[BaseModel], where: str, loc: tuple[str | int, ...], listed: set[str]
) -> str:
    classes = _place(cls, loc[:-1])[1]
    valid = [key for one in classes for key in one.model_fields]
    below = [
        f"{key}.{loc[-1]}"
        for one in classes
        for key, field in one.model_fields.items()
        if any(loc[-1] in model.model_fields for model in _models(_members(field.annotation)))
    ]
    hint = f"did you mean {below[0]!r}? " if below else _nearest(str(loc[-1]), valid)
    parent = where.rpartition(".")[0]
    if not valid:
        return f"there is no setting {where!r}; {parent!r} has no settings, so remove it."
    if parent in listed:
        return f"there is no setting {where!r}; {hint or 'remove it'}".rstrip("? ") + (
            "?" if hint else "."
        )
    listed.add(parent)
    return f"there is no setting {where!r}; {hint}Valid: {', '.join(dict.fromkeys(valid))}."


_MEMBER = re.compile(r"constrained-\w+|literal\[.*\]|int|float|str|bool|function-.*")
"""What pydantic calls the members of a union of plain types."""


def _place(
    cls: type[BaseModel], loc: Sequence[str | int]
) -> tuple[list[str], list[type[BaseModel]]]:
    """Return a place as a user writes it, and the settings classes that may stand there.

    pydantic puts the kinds and names of a union's members into the location.
    """
    place: list[str] = []
    here: list[Any] = [cls]
    for part in loc:
        classes = _models(here)
        kinds = [one for one in classes if part in _kinds_of(one)]
        named = [one for one in classes if one.__name__ == part]
        if len(classes) > 1 and (kinds or named):
            here = list(kinds or named)
            continue
        if isinstance(part, str) and _MEMBER.fullmatch(part):
            continue
        place.append(str(part))
        boxes = [one for one in here if get_origin(one) in _BOXES]
        fields = [one.model_fields[part].annotation for one in classes if part in one.model_fields]
        inside = [get_args(one)[-1 if get_origin(one) is dict else 0] for one in boxes]
        here = [member for one in fields or inside for member in _members(one)]
    return place, _models(here)


_BOXES = (list, tuple, dict)


def _kinds_of(cls: type[BaseModel]) -> tuple[Any, ...]:
    kind = cls.model_fields.get("kind")
    return get_args(kind.annotation) if kind else ()


def _members(annotation: Any) -> list[Any]:
    """Return the types of a union, and the type itself of anything else."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]


def _models(members: Iterable[Any]) -> list[type[BaseModel]]:
    """Return the settings classes among types."""
    return [one for one in members if isinstance(one, type) and issubclass(one, BaseModel)]


def _follows(error: Any, errors: Sequence[Any]) -> bool:
    """Tell whether an error is there only because of another one.

    A list is too short where what stands in it is wrong, and a key is missing where it is misspelt.
    """
    loc = error["loc"]
    if error["type"] == "missing":
        beside = [
            str(other["loc"][-1])
            for other in errors
            if other["type"] == _UNKNOWN and other["loc"][:-1] == loc[:-1]
        ]
        return bool(difflib.get_close_matches(str(loc[-1]), beside, n=1, cutoff=0.5))
    inside = (other["loc"] for other in errors if len(other["loc"]) > len(loc))
    return error["type"] == "too_short" and any(other[: len(loc)] == loc for other in inside)


def _nearest(word: str, valid: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""


_FILES = {"sources": "a recipe of `skindx build`", "members": "settings of `skindx train`"}
"""Key that shows which kind of file the settings come from, and the file's name in messages."""
_COPY = "A program wrote this file, so copy it again from its source instead of correcting it."
_LIST = "it must be a list: [a, b], or lines that begin with `- `"
_MAPPING = "it must have lines of the form `key: value`"
_SENTENCES = {
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_parsing": "it must be a number",
    "bool_parsing": "it must be true or false",
    "int_parsing_size": "it is too large",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
}


def _plainly(error: Any) -> str:
    """Return pydantic's message in the words of who writes YAML."""
    if error["type"] == "too_short":
        least = error["ctx"]["min_length"]
        return f"give at least {least} item{'s' if least > 1 else ''}"
    if error["type"] in _SENTENCES:
        return _SENTENCES[error["type"]]
    if error["type"] == "union_tag_not_found":
        return f"it needs the key {error['ctx']['discriminator']}; add this key"
    if error["type"] == "string_pattern_mismatch":
        return pattern_words(error["ctx"]["pattern"])
    message: str = error["msg"]
    return _SHOULD.sub("it must ", message.removeprefix("Value error, "))


_SHOULD = re.compile(r"^(?:Input|String|List|Tuple|Dictionary|Value|Data|URL) should ")
_DIGEST = "it must be a SHA-256 of 64 characters, each of them 0 to 9 or a to f"
_VISIBLE = "it must have no line breaks and no other invisible characters"
_URL = "write a URL such as https://host/path"
_NAME = "it must begin with a letter or digit and may have more of them, with '.', '_' and '-'"
_PATTERNS = {
    "^[0-9a-f]{64}$": _DIGEST,
    "^([0-9a-f]{64})?$": _DIGEST,
    "^([0-9a-f]{16})?$": "it must have 16 characters, each of them 0 to 9 or a to f",
    r"^[^\x00-\x1f\x7f]*$": _VISIBLE,
    r"^[^:\x00-\x1f]*$": "it must have no colon and no invisible characters",
    r"^[\x20-\x7e]*$": "it must have only ASCII characters, all of them visible",
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": _NAME,
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$": f"{_NAME}, at most 100 in all",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$": f"{_NAME}, at most 200 in all",
    r"^[a-z0-9][a-z0-9-]{0,39}$": "it must have lower-case letters, digits and '-', at most 40",
    r"^[a-z0-9][a-z0-9.-]*$": "it must have lower-case letters, digits, '.' and '-'",
    r"^[a-z]?$": "it must be one lower-case letter",
    r"^[\w-]+$": "it must have only letters, digits, '_' and '-'",
    r"^[a-z0-9+]+://": "write the URL of a database, such as sqlite:///leases.db",
    r"^([\w.-]+/[\w.-]+)?$": "write it as OWNER/NAME",
    r"^([^{}]|\{(:0\d)?\})*$": "its braces must be {} or such as {:05}",
    r"^([A-Z]\d[0-9A-Z](\.[0-9A-Z]{1,4})?)?$": "it must be an ICD-10 code such as C44.3",
}


def pattern_words(pattern: str) -> str:
    """Return what a text must be that has to match a pattern; settings of others may have any."""
    if pattern.startswith(("^https?:", "^(https?:")):
        return _URL
    if pattern.startswith((r"^[A-Za-z0-9_]+(\.", r"^(?:[A-Za-z0-9_]+(\.")):
        return "it must be the name of a network, such as resnet18 or resnet18.a1_in1k"
    return _PATTERNS.get(pattern, f"it must match the pattern {pattern!r}")
