"""Pages of settings, from the pydantic models: every key, type, default, bound and docstring."""

import ast
import inspect
import json
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel

from generators.markdown import code, escape, prose, table

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


class Page:
    """The sections of one settings class and of all classes that stand inside it."""

    def __init__(self, root: type[BaseModel], anchor: str) -> None:
        self.schema = root.model_json_schema()
        self.definitions: Mapping[str, Any] = self.schema.get("$defs", {})
        self.classes = {model.__name__: model for model in _models(root)}
        self.root, self.anchor = root, anchor
        self.paths: dict[str, str] = {}
        """Class -> the key under which it stands first."""
        self._walk()

    def text(self) -> str:
        """Return the sections: first the keys at the top, then those of each nested class."""
        parts = [_about(self.root), self._table(self.schema, self.root)]
        for name, path in self.paths.items():
            schema = self.definitions[name]
            kind = schema.get("properties", {}).get("kind", {}).get("const")
            heading = code(path) + (f", {code(f'kind: {kind}')}" if kind else "")
            parts += [f"({self._target(name)})=\n## {heading}\n"]
            if name in self.classes:
                parts += [_about(self.classes[name])]
            if "properties" in schema:
                parts += [self._table(schema, self.classes.get(name))]
        return "\n".join(parts)

    def _walk(self) -> None:
        """Name each class by the shortest path of keys that leads to it."""
        waiting = deque([(self.schema, "")])
        while waiting:
            node, path = waiting.popleft()
            for key, value in node.get("properties", {}).items():
                for name, suffix in _references(value):
                    if name not in self.paths:
                        self.paths[name] = f"{path}{key}{suffix}"
                        waiting.append((self.definitions[name], f"{path}{key}{suffix}."))

    def _table(self, schema: Mapping[str, Any], model: type[BaseModel] | None) -> str:
        required = schema.get("required", [])
        docs = _field_docs(model) if model else {}
        rows = []
        for key, value in schema.get("properties", {}).items():
            kind, bounds = self._kind(value), ", ".join(_bounds(value))
            meaning = docs.get(key) or self._about_one(value)
            default = "*required*" if key in required else _default(value)
            shown = f"{kind}, {bounds}" if bounds else kind
            rows.append((code(key), shown, default, escape(meaning)))
        return table(("key", "value", "default", "meaning"), rows) if rows else "No keys.\n"

    def _kind(self, value: Mapping[str, Any]) -> str:
        if "$ref" in value:
            return self._link(value["$ref"].rpartition("/")[2])
        if kinds := value.get("oneOf") or value.get("anyOf"):
            return " or ".join(dict.fromkeys(self._kind(kind) for kind in kinds))
        if "prefixItems" in value:
            return "[" + ", ".join(self._kind(item) for item in value["prefixItems"]) + "]"
        if value.get("type") == "array" and "items" in value:
            return f"list of {_several(self._kind(value['items']))}"
        if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
            return f"mapping of text to {self._kind(value['additionalProperties'])}"
        return plain_kind(value)

    def _about_one(self, value: Any) -> str:
        """Return the first sentence about the one class that a value may be, if it is one."""
        names = {name for name, _ in _references(value)}
        model = self.classes.get(names.pop()) if len(names) == 1 else None
        return inspect.cleandoc(model.__doc__ or "").partition("\n")[0] if model else ""

    def _link(self, name: str) -> str:
        schema = self.definitions[name]
        if "properties" not in schema and "enum" in schema:
            return self._kind(schema)
        kind = schema.get("properties", {}).get("kind", {}).get("const")
        return f"[{code(kind or self.paths.get(name, name))}](#{self._target(name)})"

    def _target(self, name: str) -> str:
        return f"{self.anchor}-{name.lower()}"


def _several(kind: str) -> str:
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


def _references(value: Any, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Return the classes that a value may hold; the suffix says that it stands in a list."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item, suffix)
    elif isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2], suffix
        for key in ("anyOf", "oneOf", "allOf"):
            yield from _references(value.get(key, []), suffix)
        for key in ("items", "prefixItems"):
            yield from _references(value.get(key, []), "[]")
        yield from _references(value.get("additionalProperties"), ".NAME")


def _bounds(value: Mapping[str, Any]) -> Iterator[str]:
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


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:  # made anew for each object
        return "its defaults" if "$ref" in schema else "empty"
    value = schema["default"]
    if value is None:
        return code("null")
    if value == "":
        return "empty"
    if isinstance(value, dict) and value:
        return "its defaults"
    shown = _plain(value)
    return code(shown) if len(shown) <= _LONGEST_DEFAULT else "a list"


def _about(model: type[BaseModel]) -> str:
    """Return a class's own docstring; an inherited one says nothing of it."""
    return prose(inspect.cleandoc(model.__doc__)) + "\n" if model.__doc__ else ""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Return every settings class that an annotation holds, at any depth."""
    seen: set[Any] = set()
    waiting = [annotation]
    while waiting:
        node = waiting.pop()
        if isinstance(node, type) and issubclass(node, BaseModel):
            if node in seen:
                continue
            seen.add(node)
            yield node
            waiting += [field.annotation for field in node.model_fields.values()]
        waiting += get_args(node)


def _field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return field -> the docstring below it, in the class itself or in the one it comes from."""
    docs: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            docs |= _own_docs(owner)
    described = {name: field.description for name, field in model.model_fields.items()}
    aliases = {name: field.alias or name for name, field in model.model_fields.items()}
    docs |= {name: text for name, text in described.items() if text}
    return {aliases.get(name, name): text for name, text in docs.items()}


@cache
def _own_docs(model: type[BaseModel]) -> dict[str, str]:
    try:
        source = inspect.getsource(model)
    except (OSError, TypeError):
        return {}
    body = ast.parse(textwrap.dedent(source)).body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, below in pairwise(body):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found
