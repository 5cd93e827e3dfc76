"""JSON schema in words: what a value may be, its bounds, its default, the classes it may hold."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generators.markdown import code

_ROOT = Path(__file__).parents[2]
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minProperties": "at least {} keys",
    "pattern": "pattern `{}`",
}
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "null": "`null`",
    "object": "mapping",
    "array": "list",
}
_LONGEST_DEFAULT = 60


def several(kind: str) -> str:
    """Return the plural of a kind."""
    return f"{kind}s" if kind in ("text", "number", "whole number", "path", "mapping") else kind


def plain_kind(value: Mapping[str, Any]) -> str:
    """Return what a value of JSON schema without parts may be."""
    if "const" in value:
        return code(_plain(value["const"]))
    if "enum" in value:
        return ", ".join(code(_plain(item)) for item in value["enum"])
    if value.get("format") in ("path", "uri", "date", "date-time", "binary"):
        return str(value["format"])
    return _TYPES.get(value.get("type", ""), "any value")


def references(value: Any, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Return the classes that a value may hold; the suffix says that it stands in a list."""
    if isinstance(value, list):
        for item in value:
            yield from references(item, suffix)
    elif isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2], suffix
        for key in ("anyOf", "oneOf", "allOf"):
            yield from references(value.get(key, []), suffix)
        for key in ("items", "prefixItems"):
            yield from references(value.get(key, []), "[]")
        yield from references(value.get("additionalProperties"), ".NAME")


def bounds(value: Mapping[str, Any]) -> Iterator[str]:
    """Return the bounds of a value, or of the one kind that is not null."""
    kinds = [kind for kind in value.get("anyOf", []) if kind.get("type") != "null"]
    for node in [value, *(kinds if len(kinds) == 1 else [])]:
        tuple_of = "prefixItems" in node  # its length is seen from its parts
        for key, words in _BOUNDS.items():
            if key in node and not (tuple_of and key in ("minItems", "maxItems")):
                nonempty = key in ("minItems", "minLength", "minProperties") and node[key] == 1
                yield "not empty" if nonempty else words.format(_number(node[key]))


def _number(value: Any) -> Any:
    return "2⁶³" if value == 2**63 else value


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def default(schema: Mapping[str, Any]) -> str:
    """Return the default of a key that is not required."""
    if "default" not in schema:  # made again for each object
        return "its defaults" if "$ref" in schema else "empty"
    value = schema["default"]
    if value is None:
        return code("null")
    if value == "":
        return "empty"
    if isinstance(value, dict) and value:
        return "its defaults"
    shown = _plain(value).removeprefix(f"{_ROOT}/")  # a file of the checkout, wherever it lies
    return code(shown) if len(shown) <= _LONGEST_DEFAULT else "a list"
