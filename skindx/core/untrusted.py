"""Files that people pass around are read within limits: size, depth, no aliases, plain files only.

Everything here raises UserError in one sentence for what it does not take.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml

from skindx.core.errors import UserError

MEGABYTE = 2**20

MALFORMED = (
    ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError,
    EOFError, MemoryError,
)  # fmt: skip
"""What reading values of an unknown shape may raise; UserError is among them, as a ValueError."""
_DEEPEST = 32
_LONGEST_SCALAR = 16_384
"""Most characters of a scalar: PyYAML reads some long ones as numbers in quadratic time."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALARS = (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", "~|null|Null|NULL|", "~nN\0"),
    ("merge", "<<", "<"),
)
"""Plain scalars that are no text, with the characters that they begin with."""


class PlainWords:
    """Mixed into a loader of PyYAML: what looks like a word is text, and so is every key.

    YAML 1.1 takes NO, on and y for truth values, 0x10, 010 and 12:30 for numbers, 2024-05-01 for a
    date. Here, as in YAML 1.2, they are text; settings that expect a truth value read yes and no.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first.strip("\0"): [
            (_TAG + name, re.compile(f"(?:{pattern})$"))
            for name, pattern, firsts in _SCALARS
            if first in firsts
        ]
        for first in "-+0123456789.tTfF~nN\0<"
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)  # type: ignore[misc]
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = f"{_TAG}str"


class _WordLoader(PlainWords, _Loader):  # type: ignore[misc]
    """YAML loader for text of unknown origin."""


def load_words(text: str) -> Any:
    """Return the value of YAML text, without limits. Raises YAMLError, ValueError."""
    return yaml.load(text, Loader=_WordLoader)  # noqa: S506 (a safe loader)


def open_plain(path: Path, most: int) -> int:
    """Return a descriptor of a plain file of at most `most` bytes, opened to read.

    Never waits, as a pipe would make us do, and follows no link in the last place.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be opened ({error.strerror}); give a plain file that you may read."
        ) from None
    facts = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(facts.st_mode):
        problem = "is no plain file"
    elif facts.st_size > most:
        problem = f"has {facts.st_size} bytes, and at most {most} are read"
    if problem:
        os.close(descriptor)
        raise UserError(
            f"{path} {problem}; it is damaged or the wrong file, so replace it with a correct file."
        )
    return descriptor


def read_plain(path: Path, most: int = MEGABYTE) -> bytes:
    """Return the bytes of a plain file of at most `most` bytes."""
    with open(open_plain(path, most), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UserError(
            f"{path} is larger than the limit of {most} bytes, so it is damaged or the wrong "
            "file; replace it with a correct file."
        )
    return content


def parse_json(
    content: bytes, origin: str, *, finite: bool = True, deepest: int = _DEEPEST
) -> dict[str, Any]:
    """Return a JSON object in which no key stands twice; `finite`: and neither NaN nor infinity."""
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_twins,
            parse_constant=_no_number if finite else None,
            parse_float=_finite if finite else None,
        )
    except RecursionError:
        raise UserError(
            f"{origin} has too many nested levels; replace it with a correct copy."
        ) from None
    except ValueError as error:
        raise UserError(
            f"{origin} is not valid JSON ({error}); replace it with a correct copy."
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"{origin} is not a JSON object ({{...}}); replace it with a correct copy.")
    _check_depth(value, origin, deepest)
    return value


def read_json(
    path: Path, most: int = MEGABYTE, *, finite: bool = True, deepest: int = _DEEPEST
) -> dict[str, Any]:
    """Read a JSON object from a plain file."""
    return parse_json(read_plain(path, most), str(path), finite=finite, deepest=deepest)


def read_plain_yaml(path: Path, most: int = MEGABYTE) -> dict[str, Any]:
    """Read a YAML mapping of plain values, without aliases, from a plain file."""
    value = read_plain_values(path, most)
    if not isinstance(value, dict):
        raise UserError(
            f"{path} has no lines of the form `key: value`; correct it, or replace it with a "
            "correct copy."
        )
    return value


def read_plain_values(path: Path, most: int = MEGABYTE) -> Any:
    """Read plain values of any kind, without aliases, from a plain YAML file."""
    content = read_plain(path, most)
    try:
        text = content.decode("utf-8")
        _check_events(text, str(path))
        value = load_words(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        detail = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} is not valid YAML ({detail}); correct it, or replace it with a correct copy."
        ) from None
    return value


def _check_depth(value: Any, origin: str, deepest: int) -> None:
    layer, depth = [value], 0
    while layer := [
        child
        for node in layer
        for child in (node.values() if isinstance(node, dict) else node)
        if isinstance(child, dict | list)
    ]:
        depth += 1
        if depth > deepest:
            raise UserError(
                f"{origin} has more than {deepest} nested levels; correct it, or replace it with "
                "a correct copy."
            )


def _check_events(text: str, origin: str) -> None:
    """Raise UserError for aliases and depth before anything is built of them."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise UserError(
                f"{origin} uses the YAML alias *{event.anchor}, which is not allowed; write the "
                "value itself."
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > _LONGEST_SCALAR:
            raise UserError(
                f"{origin} has a value of more than {_LONGEST_SCALAR} characters; shorten it, or "
                "replace the file with a correct copy."
            )
        if depth > _DEEPEST:
            raise UserError(
                f"{origin} has more than {_DEEPEST} nested levels; correct it, or replace it with "
                "a correct copy."
            )


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"the key {key[:40]!r} occurs twice")
        mapping[key] = value
    return mapping


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large")
    return value
