"""The interface described for people, out of its OpenAPI description; nothing is fetched."""

import json
from typing import Any

from skindx.ui.html import render


def docs_html(openapi: dict[str, Any]) -> str:
    """Return a page that lists routes, fields, answers and examples."""
    routes = _routes(openapi)
    return render(
        "docs.html.jinja", info=openapi["info"], routes=routes, values=_values(openapi, routes)
    )


def _routes(openapi: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "method": method.upper(),
            "path": path,
            "summary": route.get("summary", ""),
            "about": route.get("description", ""),
            "fields": _fields(openapi, route),
            "answers": [
                {"status": status, "about": said["description"], **_body(openapi, said)}
                for status, said in route["responses"].items()
            ],
        }
        for path, methods in openapi["paths"].items()
        for method, route in methods.items()
    ]


def _values(openapi: dict[str, Any], routes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields of every value that the routes' tables name, in the order of naming."""
    schemas = openapi.get("components", {}).get("schemas", {})
    found: dict[str, list[dict[str, Any]]] = {}
    waiting = [row for route in routes for answer in route["answers"] for row in answer["rows"]]
    while waiting:
        kind = waiting.pop(0)["kind"]
        for name in set(kind.removeprefix("list of ").split(" or ")) & set(schemas) - set(found):
            found[name] = _rows(openapi, schemas[name])
            waiting += found[name]
    return [{"name": name, "rows": rows} for name, rows in found.items()]


def _fields(openapi: dict[str, Any], route: dict[str, Any]) -> list[dict[str, Any]]:
    content = route.get("requestBody", {}).get("content", {})
    return [row for body in content.values() for row in _rows(openapi, body.get("schema", {}))]


def _body(openapi: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    schema = said.get("content", {}).get("application/json", {}).get("schema", {})
    examples = _resolved(openapi, schema).get("examples", [])
    return {
        "rows": _rows(openapi, schema),
        "example": json.dumps(examples[0], indent=2, ensure_ascii=False) if examples else "",
    }


def _rows(openapi: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = _resolved(openapi, schema)
    needed = found.get("required", [])
    return [
        {
            "name": name,
            "kind": _kind(openapi, field),
            "needed": name in needed,
            "about": field.get("description", ""),
        }
        for name, field in found.get("properties", {}).items()
    ]


def _resolved(openapi: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    resolved: dict[str, Any] = openapi["components"]["schemas"][name]
    return resolved


def _kind(openapi: dict[str, Any], schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_kind(openapi, option) for option in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if schema.get("type") == "array":
        items = schema.get("items", {})
        return f"list of {_kind(openapi, items) if isinstance(items, dict) else 'values'}"
    return str(schema.get("format") or schema.get("type", "any"))
