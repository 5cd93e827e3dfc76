"""Pages of settings, from the pydantic models: every key, type, default, bound and docstring."""

import inspect
from collections import deque
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from generators.docstrings import about, field_docs, models
from generators.markdown import code, escape, table
from generators.schema import bounds, default, plain_kind, references, several


class Page:
    """The sections of one settings class and of all classes that stand inside it."""

    def __init__(self, root: type[BaseModel], anchor: str) -> None:
        self.schema = root.model_json_schema()
        self.definitions: Mapping[str, Any] = self.schema.get("$defs", {})
        self.classes = {model.__name__: model for model in models(root)}
        self.root, self.anchor = root, anchor
        self.paths: dict[str, str] = {}
        """Class -> the key under which it stands first."""
        self._walk()

    def text(self) -> str:
        """Return the sections: first the keys at the top, then those of each nested class."""
        parts = [about(self.root), self._table(self.schema, self.root)]
        for name, path in self.paths.items():
            schema = self.definitions[name]
            kind = schema.get("properties", {}).get("kind", {}).get("const")
            heading = code(path) + (f", {code(f'kind: {kind}')}" if kind else "")
            parts += [f"({self._target(name)})=\n## {heading}\n"]
            if name in self.classes:
                parts += [about(self.classes[name])]
            if "properties" in schema:
                parts += [self._table(schema, self.classes.get(name))]
        return "\n".join(parts)

    def _walk(self) -> None:
        """Name each class by the shortest path of keys that leads to it."""
        waiting = deque([(self.schema, "")])
        while waiting:
            node, path = waiting.popleft()
            for key, value in node.get("properties", {}).items():
                for name, suffix in references(value):
                    if name not in self.paths:
                        self.paths[name] = f"{path}{key}{suffix}"
                        waiting.append((self.definitions[name], f"{path}{key}{suffix}."))

    def _table(self, schema: Mapping[str, Any], model: type[BaseModel] | None) -> str:
        required = schema.get("required", [])
        docs = field_docs(model) if model else {}
        rows = []
        for key, value in schema.get("properties", {}).items():
            shown = ", ".join([self._kind(value), *bounds(value)])
            usual = "*required*" if key in required else default(value)
            meaning = docs.get(key) or self._about_one(value)
            rows.append((code(key), shown, usual, escape(meaning)))
        return table(("key", "value", "default", "meaning"), rows) if rows else "No keys.\n"

    def _kind(self, value: Mapping[str, Any]) -> str:
        if "$ref" in value:
            return self._link(value["$ref"].rpartition("/")[2])
        if kinds := value.get("oneOf") or value.get("anyOf"):
            return " or ".join(dict.fromkeys(self._kind(kind) for kind in kinds))
        if "prefixItems" in value:
            return "[" + ", ".join(self._kind(item) for item in value["prefixItems"]) + "]"
        if value.get("type") == "array" and "items" in value:
            return f"list of {several(self._kind(value['items']))}"
        if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
            return f"mapping of text to {self._kind(value['additionalProperties'])}"
        return plain_kind(value)

    def _about_one(self, value: Any) -> str:
        """Return the first sentence about the one class that a value may be, if it is one."""
        names = {name for name, _ in references(value)}
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
