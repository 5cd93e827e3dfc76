"""Frozen settings from YAML and `--set a.b=v`; a typo is refused with the nearest valid key."""

import copy
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.removed_names import REMOVED, removed_keys
from skindx.core.secret_hosts import expanded
from skindx.core.settings_errors import removed_error, what_is_wrong
from skindx.core.untrusted import PlainWords

_MOST_VALUES = 1_000_000


_YAML = "yaml"
"""Key of the context of validation: whether the values were written in YAML."""


OFF = BeforeValidator(lambda value: "off" if value is False else value)
"""Validator for settings with the choice `off`, which YAML 1.1 reads as false unless quoted."""


def with_group(pattern: str) -> str:
    """Return a regular expression that has a group. Raises ValueError."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of what `re` may mean one day
            groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"this is not a valid regular expression ({error})") from None
    if groups < 1:
        raise ValueError(
            "the pattern must have exactly one pair of brackets, around the part that is the name"
        )
    return pattern


NamePattern = Annotated[str, AfterValidator(with_group)]
"""A regular expression whose first group is the name that is looked for."""


_NO_NUMBER = PydanticCustomError(
    "truth_value", "YAML reads yes, no, on and off as true or false; write a number"
)


class Settings(BaseModel):
    """Base of every settings class: immutable; unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    removed_from: ClassVar[str] = ""
    """Where the settings stand in `removed_names`, as `train members[].`; "": none of them went."""

    @model_validator(mode="before")
    @classmethod
    def _without_removed_keys(cls, raw: Any) -> Any:
        if not cls.removed_from or not isinstance(raw, dict):
            return raw
        if gone := list(removed_keys(cls.removed_from, raw)):
            errors = [
                InitErrorDetails(type=removed_error(said), loc=(key,), input=raw[key])
                for key, said in gone
            ]
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return {k: v for k, v in raw.items() if f"{cls.removed_from}{k}" not in REMOVED}

    @model_validator(mode="before")
    @classmethod
    def _text_where_text_is_expected(cls, raw: Any, info: ValidationInfo) -> Any:
        """Take what YAML reads as a number or truth value as it is written, where text is due."""
        if not isinstance(raw, dict) or not (info.context or {}).get(_YAML):
            return raw
        fields = {name: field for name, field in cls.model_fields.items() if name in raw}
        texts = {name for name, field in fields.items() if _is_of_text(field)}
        untyped = {name for name, field in fields.items() if Any in _leaves(field.annotation)}
        return {
            key: _as_text(value) if key in texts else _as_plain(value) if key in untyped else value
            for key, value in raw.items()
        }

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
        raw = read_yaml(path, _WrittenLoader) if path else copy.deepcopy(start or {})
        assigned = [_assign(raw, assignment) for assignment in sets]
        origin = str(path) if path else "--set" if assigned else "settings"
        settings = cls._parse(expanded(raw, origin), origin, assigned, yaml=True)
        settings.check_sent(raw, origin)
        return settings

    @classmethod
    def parse(
        cls,
        raw: dict[str, Any],
        origin: str = "settings",
        *,
        expand: bool = True,
        yaml: bool = False,
    ) -> Self:
        """Validate plain values; `origin` names them in an error. Raises UserError.

        `yaml`: they were written in YAML, so that a number may stand where text is due. Untrusted
        input must not `expand` environment variables: an error would reveal them.
        """
        if not expand:
            written = origin.endswith((".json", ".yaml")) and not yaml
            return cls._parse(raw, origin, yaml=yaml, by_hand=not written)
        settings = cls._parse(expanded(raw, origin), origin, yaml=yaml)
        settings.check_sent(raw, origin)
        return settings

    @classmethod
    def saved(cls, path: Path) -> Self:
        """Read what `save` wrote; no variable is replaced in it. Raises UserError."""
        return cls._parse(read_yaml(path), str(path), yaml=True)

    def check_sent(self, raw: Mapping[str, Any], origin: str) -> None:
        """Raise UserError where a variable in `raw` would go to a host not named for it.

        URLs are checked already; a class whose other values are sent somewhere checks them here.
        """

    @classmethod
    def _parse(
        cls,
        raw: dict[str, Any],
        origin: str,
        assigned: Sequence[str] = (),
        *,
        yaml: bool = False,
        by_hand: bool = True,
    ) -> Self:
        """Validate; what is wrong at or below an `assigned` key came from --set, not `origin`."""
        try:
            return cls.model_validate(raw, context={_YAML: yaml})
        except ValidationError as error:
            raise UserError(what_is_wrong(cls, error, origin, assigned, by_hand=by_hand)) from None

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


def _is_of_text(field: FieldInfo) -> bool:
    """Tell whether a field takes text, alone or in lists and mappings, and no other scalar."""
    kinds = set(_leaves(field.annotation)) - {type(None), Ellipsis}
    return bool(kinds & {str, Path}) and all(
        kind in (str, Path) or type(kind) is str for kind in kinds
    )


def _as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [inner if isinstance(inner, list | dict) else _as_text(inner) for inner in value]
    if isinstance(value, bool):
        return str(value)
    return getattr(value, "text", str(value)) if isinstance(value, int | float) else value


def _as_plain(value: Any) -> Any:
    """Return a value whose numbers forget how they were written, for fields that take any type."""
    if isinstance(value, dict):
        return {key: _as_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_plain(inner) for inner in value]
    if isinstance(value, _WrittenInt):
        return int(value)
    return float(value) if isinstance(value, _WrittenFloat) else value


def read_yaml(path: Path, loader: type[yaml.SafeLoader] | None = None) -> dict[str, Any]:
    """Read a YAML mapping. Raises UserError for what is no file, no YAML or no mapping."""
    try:
        value = _load(path.read_text(encoding="utf-8"), loader or _Loader)
    except _RepeatedKeyError as error:
        raise UserError(f"{path}: {error}.") from None
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); give a text file in YAML format."
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"{path} is not valid YAML, so correct it: {detail}") from None
    if value is None:
        return {}
    _refuse_bursting(value, path)
    if not isinstance(value, dict):
        raise UserError(
            f"{path} has no settings; write each setting on its own line as `key: value`."
        )
    return value


class _RepeatedKeyError(yaml.YAMLError):
    """A mapping that holds a key twice."""


class _Loader(PlainWords, yaml.SafeLoader):
    """Plain values; a key that stands twice in a mapping is refused, where YAML drops the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in lines:
                    raise _RepeatedKeyError(
                        f"the key {key.value!r} is on line {lines[key.value]} and again on line "
                        f"{line}; delete one of the two lines"
                    )
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def _load(text: str, loader: type[yaml.SafeLoader]) -> Any:
    return yaml.load(text, Loader=loader)  # noqa: S506 - it is a SafeLoader


class _WrittenFloat(float):
    """A number that may be written otherwise than Python writes it, such as 1.10."""

    text: str


class _WrittenInt(int):
    """A whole number that may be written otherwise than Python writes it, such as 1_000."""

    text: str


class _WrittenLoader(_Loader):
    """Keeps how numbers are written, for settings that expect text."""

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        number = _WrittenFloat(super().construct_yaml_float(node))
        number.text = node.value
        return number

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = _WrittenInt(super().construct_yaml_int(node))
        number.text = node.value
        return number


_WrittenLoader.add_constructor("tag:yaml.org,2002:float", _WrittenLoader.construct_yaml_float)
_WrittenLoader.add_constructor("tag:yaml.org,2002:int", _WrittenLoader.construct_yaml_int)


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
            f"{path} has more than {_MOST_VALUES} values after its YAML aliases (*name) are "
            "expanded; write the values without aliases."
        )


def _assign(raw: dict[str, Any], assignment: str) -> str:
    """Set what `assignment` says; return its key."""
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise UserError(
            f"--set {assignment!r} has the wrong form; write it as --set key=value, for example "
            "--set recipe.batch=32."
        )
    try:
        value = _load(text, _WrittenLoader)
    except _RepeatedKeyError as error:
        raise UserError(f"--set {assignment!r}: {error}.") from None
    except yaml.YAMLError:
        raise UserError(
            f"--set {assignment!r} has a value that is not valid YAML; put the value in quotes."
        ) from None
    *parents, last = key.split(".")
    node: Any = raw
    for part in parents:
        if isinstance(node, list):
            node = node[_index(node, part, assignment)]
        else:
            node = node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise UserError(
                f"--set {assignment!r} is wrong, because {part!r} is a single value without keys "
                "below it; run with --set help=1 for the list of settings."
            )
    if isinstance(node, list):
        node[_index(node, last, assignment)] = value
    else:
        node[last] = value
    return key


def _index(node: Sequence[Any], part: str, assignment: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise UserError(
            f"--set {assignment!r} addresses a list; write a position from 0 to {len(node) - 1} "
            f"in place of {part!r}."
        )
    return int(part)
