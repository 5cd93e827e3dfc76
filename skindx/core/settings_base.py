"""Frozen settings from YAML and `--set a.b=v`; a typo is refused with the nearest valid key."""

import copy
import difflib
import math
import re
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.secret_hosts import expanded

_MOST_ERRORS, _MOST_VALUES = 100, 1_000_000


def _word_off(value: Any) -> Any:
    return "off" if value is False else value


OFF = BeforeValidator(_word_off)
"""For a choice of words that has `off`: YAML 1.1 reads it as false where it is not quoted."""


def with_group(pattern: str) -> str:
    """Return a regular expression that has a group. Raises ValueError."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of what `re` may mean one day
            groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression ({error})") from None
    if groups < 1:
        raise ValueError("needs one pair of brackets around the name that it finds")
    return pattern


NamePattern = Annotated[str, AfterValidator(with_group)]
"""A regular expression whose first group is the name that is looked for."""


_NO_NUMBER = PydanticCustomError(
    "truth_value", "write a number: YAML reads yes, no, on and off as truth values"
)


class Settings(BaseModel):
    """Base of every settings class: immutable; unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    gone: ClassVar[Mapping[str, str]] = {}
    """Former settings -> what to do instead; where one was empty or zero, it changed nothing."""

    @model_validator(mode="before")
    @classmethod
    def _without_former_settings(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or not (former := cls.gone.keys() & raw.keys()):
            return raw
        for key in sorted(former):
            if raw[key]:
                raise ValueError(f"{key} is gone; {cls.gone[key]}")
        return {key: value for key, value in raw.items() if key not in former}

    @model_validator(mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, raw: Any) -> Any:
        # A validator of the fields themselves is not allowed for the kind of a union's members.
        if not isinstance(raw, dict):
            return raw
        wrong = [
            InitErrorDetails(type=_NO_NUMBER, loc=(name,), input=raw[name])
            for name, field in cls.model_fields.items()
            if name in raw and _holds_truth(raw[name]) and _is_of_numbers(field)
        ]
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return raw

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        sets: Iterable[str] = (),
        *,
        start: dict[str, Any] | None = None,
    ) -> Self:
        """Read a YAML file (none: `start`, or the defaults), apply `a.b=value`, validate.

        `${NAME}` in a string is replaced by the environment variable NAME. Raises UserError, also
        where its value would go to a host that the user has not named (core/secret_hosts.py).
        """
        raw = read_yaml(path) if path else copy.deepcopy(start or {})
        assigned = [_assign(raw, assignment) for assignment in sets]
        origin = str(path) if path else "--set" if assigned else "settings"
        settings = cls._parse(expanded(raw, origin), origin, assigned)
        settings.check_sent(raw, origin)
        return settings

    @classmethod
    def parse(cls, raw: dict[str, Any], origin: str = "settings", *, expand: bool = True) -> Self:
        """Validate plain values; `origin` names them in an error. Raises UserError.

        Untrusted input must not `expand` environment variables: an error would reveal them.
        """
        if not expand:
            return cls._parse(raw, origin)
        settings = cls._parse(expanded(raw, origin), origin)
        settings.check_sent(raw, origin)
        return settings

    @classmethod
    def saved(cls, path: Path) -> Self:
        """Read what `save` wrote; no variable is replaced in it. Raises UserError."""
        return cls._parse(read_yaml(path), str(path))

    def check_sent(self, raw: Mapping[str, Any], origin: str) -> None:
        """Raise UserError where a variable in `raw` would go to a host not named for it.

        URLs are checked already; a class whose other values are sent somewhere checks them here.
        """

    @classmethod
    def _parse(cls, raw: dict[str, Any], origin: str, assigned: Sequence[str] = ()) -> Self:
        """Validate; what is wrong at or below an `assigned` key came from --set, not `origin`."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise UserError(_sentence(cls, error, origin, assigned)) from None

    def save(self, path: Path) -> None:
        """Write the resolved settings as YAML that `load` reads back to an equal object."""
        write_text(path, yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False))


def _holds_truth(value: Any) -> bool:
    """Tell whether a value is a truth value, or a list with one."""
    return isinstance(value, bool) or (
        isinstance(value, list | tuple) and any(_holds_truth(item) for item in value)
    )


def _is_of_numbers(field: FieldInfo) -> bool:
    """Tell whether a field takes numbers and no truth value, which Python would count as one."""
    kinds = list(_leaves(field.annotation))
    numbers = any(kind in (int, float) or type(kind) is int for kind in kinds)
    return numbers and not any(kind in (bool, Any) or type(kind) is bool for kind in kinds)


def _leaves(annotation: Any) -> Iterator[Any]:
    """Yield the plain types and literals of unions, lists and Annotated."""
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        parts = parts[:1]
    if not parts:
        yield annotation
    for part in parts:
        yield from _leaves(part)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises UserError for what is no file, no YAML or no mapping."""
    try:
        value = _load(path.read_text(encoding="utf-8"))
    except _RepeatedKeyError as error:
        raise UserError(f"{path}: {error}.") from None
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give a YAML text file.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"{path} is not valid YAML: {detail}") from None
    if value is None:
        return {}
    _refuse_bursting(value, path)
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold `key: value` lines, not a {type(value).__name__}.")
    return value


class _RepeatedKeyError(yaml.YAMLError):
    """A mapping that holds a key twice."""


class _Loader(yaml.SafeLoader):
    """Plain values; a key that stands twice in a mapping is refused, where YAML drops the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in lines:
                    raise _RepeatedKeyError(
                        f"the key {key.value!r} stands in line {lines[key.value]} and again in "
                        f"line {line}, and only one would count; merge the two"
                    )
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def _load(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a SafeLoader


def _refuse_bursting(value: Any, path: Path) -> None:
    """Raise UserError where aliases make far more of a file than stands in it, or have no end."""
    sizes: dict[int, float] = {}

    def size(node: Any) -> float:
        if not isinstance(node, dict | list):
            return 1
        if id(node) not in sizes:
            sizes[id(node)] = math.inf  # what holds itself has no size
            inner = node.values() if isinstance(node, dict) else node
            sizes[id(node)] = 1 + sum(size(child) for child in inner)
        return sizes[id(node)]

    if size(value) > _MOST_VALUES:
        raise UserError(
            f"{path} holds more than {_MOST_VALUES} values once its aliases (*name) are written "
            "out; write them out yourself, or correct them."
        )


def _assign(raw: dict[str, Any], assignment: str) -> str:
    """Set what `assignment` says; return its key."""
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise UserError(f"--set {assignment!r} must look like a.b=value.")
    try:
        value = _load(text)
    except _RepeatedKeyError as error:
        raise UserError(f"--set {assignment!r}: {error}.") from None
    except yaml.YAMLError:
        raise UserError(f"--set {assignment!r}: the value is not valid YAML; quote it.") from None
    *parents, last = key.split(".")
    node: Any = raw
    for part in parents:
        if isinstance(node, list):
            node = node[_index(node, part, assignment)]
        else:
            node = node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise UserError(f"--set {assignment!r}: {part!r} is a single value, it has no keys.")
    if isinstance(node, list):
        node[_index(node, last, assignment)] = value
    else:
        node[last] = value
    return key


def _index(node: Sequence[Any], part: str, assignment: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise UserError(
            f"--set {assignment!r}: {part!r} must be a position from 0 to {len(node) - 1}."
        )
    return int(part)


def _sentence(
    cls: type[BaseModel], error: ValidationError, origin: str, assigned: Sequence[str]
) -> str:
    # A misspelt key also makes the right one missing: the misspelling is the cause, so it leads.
    # A file that is wrong in each of its lines need not have all of them compared.
    errors = error.errors(include_url=False)[:_MOST_ERRORS]
    causes = [item for item in errors if not _follows(item, errors)]
    first, *remaining = sorted(causes, key=lambda item: item["type"] != "extra_forbidden")
    loc = first["loc"]
    where = _where(loc)
    if any(f"{where}.".startswith(f"{key}.") for key in assigned):
        origin = "--set"
    alternatives = [item for item in remaining if _where(item["loc"]) == where]
    remaining = [item for item in remaining if _where(item["loc"]) != where]
    more = f" ({len(remaining)} more after this one)" if remaining else ""
    if first["type"] == "extra_forbidden":
        unknown = {item["loc"] for item in errors if item["type"] == "extra_forbidden"}
        if other := next((file for key, file in _FILES.items() if (key,) in unknown), ""):
            needed = next((file for key, file in _FILES.items() if key in cls.model_fields), "")
            return f"{origin} holds {other}; give {needed or 'another file'}."
        valid = _keys(cls, loc[:-1])
        below = [f"{key}.{loc[-1]}" for key in valid if loc[-1] in _keys(cls, (*loc[:-1], key))]
        hint = f"did you mean {below[0]!r}? " if below else _nearest(str(loc[-1]), valid)
        return f"{origin}: unknown key {where!r}; {hint}Valid: {', '.join(valid)}.{more}"
    if first["type"] == "missing":
        return f"{origin}: {where!r} is missing; add it.{more}"
    if first["type"] == "union_tag_invalid":
        valid = re.findall(r"'([^']+)'", first["ctx"]["expected_tags"])
        hint = _nearest(str(first["ctx"]["tag"]), valid)
        name = first["ctx"]["discriminator"].strip("'")
        tag = f"{first['ctx']['tag']!r} is no {name}"
        return f"{origin}: {where!r}: {tag}; {hint}Valid: {', '.join(valid)}.{more}"
    message = ", or ".join(dict.fromkeys(map(_plainly, [first, *alternatives])))
    if not loc and isinstance(first["input"], dict):  # of several settings, which it names itself
        return f"{origin}: {message}.{more}"
    shown = repr(first["input"])
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{origin}: {where or 'value'!r} = {shown}: {message}.{more}"


def _where(loc: Sequence[str | int]) -> str:
    """Return the place of an error without the names that pydantic gives to a union's members."""
    return ".".join(str(part) for part in loc if not _MEMBER.fullmatch(str(part)))


_MEMBER = re.compile(r"constrained-\w+|literal\[.*\]|int|float|str|bool|function-.*")


def _follows(error: Any, errors: Sequence[Any]) -> bool:
    """Tell whether a list is too short only because what stands in it is wrong."""
    loc = error["loc"]
    inside = (other["loc"] for other in errors if len(other["loc"]) > len(loc))
    return error["type"] == "too_short" and any(other[: len(loc)] == loc for other in inside)


def _nearest(word: str, valid: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""


_FILES = {"sources": "a recipe of `skindx build`", "members": "settings of `skindx train`"}
"""The key by which each is known."""
_LIST = "it must be a list: [a, b], or lines that begin with `- `"
_MAPPING = "it must hold `key: value` lines"
_SENTENCES = {
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_parsing": "it must be a number",
    "bool_parsing": "it must be true or false",
    "int_parsing_size": "it is larger than any number that is allowed",
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
        return f"it needs the key {error['ctx']['discriminator']}, which says what it is"
    if error["type"] == "string_pattern_mismatch" and error["ctx"]["pattern"].startswith(
        "^https?:"
    ):
        return "write a URL, as in https://host/path"
    message: str = error["msg"]
    return message.removeprefix("Value error, ").replace("Input should be", "it must be")


def _keys(annotation: Any, loc: tuple[str | int, ...]) -> list[str]:
    """Return the keys allowed at `loc`, a pydantic error location below `annotation`."""
    for model in _models(annotation):
        if not loc:
            return list(model.model_fields)
        head, rest = loc[0], loc[1:]
        if isinstance(head, str) and head in model.model_fields:
            return _keys(model.model_fields[head].annotation, rest)
        # A tagged union puts the tag into the location, a list the position.
        kind = model.model_fields.get("kind")
        if isinstance(head, int) or (kind and head in get_args(kind.annotation)):
            return _keys(model, rest) if not isinstance(head, int) else _keys(annotation, rest)
    return []


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Flatten lists, unions and Annotated into the settings classes they hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, types.UnionType, list, tuple, dict):
        return [model for part in get_args(annotation) for model in _models(part)]
    return []
