"""Pages of the HTTP interface and of the Prometheus names, from the server's own objects."""

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from generators.markdown import code, escape, prose, table
from generators.schema import plain_kind

_INTRODUCTION = """# HTTP interface

`skindx serve BUNDLE` answers programs under `/v1`; the same description, without a network, stands
at `/docs` of each server, and its OpenAPI file at `/openapi.json`.
"""


def http_interface() -> str:
    """Return the page of the routes under /v1, from their OpenAPI description."""
    api = _openapi()
    parts = [_INTRODUCTION]
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            parts += [f"## `{method.upper()} {path}`\n", f"{route['summary']}.\n"]
            parts += [
                prose(route.get("description", "")) + "\n",
                *_request(route),
                *_answers(route),
            ]
    parts += ["## Values\n"]
    for name, schema in api["components"]["schemas"].items():
        parts += [f"(http-{name.lower()})=\n### {code(name)}\n"]
        parts += [prose(schema.get("description", "")) + "\n", *_fields(schema)]
        for example in schema.get("examples", []):
            parts += [f"```json\n{json.dumps(example, indent=2, ensure_ascii=False)}\n```\n"]
    return "\n".join(parts)


def prometheus_names() -> str:
    """Return the page of all names of /v1/metrics, from the registry itself."""
    from skindx.ui.http.server_metrics import Metrics

    registry = Metrics(_bundle(), "", lambda: _STATUS).registry
    rows = set()
    for collector, (name, *_) in _collectors(registry):
        for family in collector.collect():
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            labels = [*collector._labelnames] or sorted(_labels(family))
            about = escape(family.documentation)
            rows.add((code(name + suffix), family.type, ", ".join(map(code, labels)), about))
    return _METRICS.format(table=table(("name", "type", "labels", "meaning"), sorted(rows)))


def _collectors(registry: Any) -> Iterator[tuple[Any, Any]]:
    """Return each counter with its names; the registry has no public way to ask for labels."""
    yield from registry._collector_to_names.items()


def _labels(family: Any) -> set[str]:
    return {key for sample in family.samples for key in sample.labels}


_METRICS = """# Prometheus names

`GET /v1/metrics` answers in Prometheus' text format. The counters hold nothing about any one case.

{table}
A histogram has the series `_bucket` (with the label `le`), `_sum` and `_count`.
"""

_MEASURED = {
    "classes": [{"key": "key"}],
    "confusion": [[1]],
    "reliability": [{"high": 1.0, "n": 1}],
}
_STATUS = SimpleNamespace(workers=1, ready=1, restarts=0, waiting=0, capacity=64, problem="")


def _bundle() -> Any:
    """Return what routes and counters read of a bundle before the first case."""
    taxonomy = SimpleNamespace(keys=("key",))
    return SimpleNamespace(
        spec=SimpleNamespace(name="NAME", metadata=None),
        digest="",
        taxonomy=taxonomy,
        metrics=lambda: _MEASURED,
    )


def _openapi() -> Any:
    from fastapi import FastAPI

    from skindx.ui.http.api_routes import routes
    from skindx.ui.http.scan_routes import scan_routes
    from skindx.ui.http.server_metrics import Metrics

    app = FastAPI(title="skindx", version="1")
    metrics = Metrics(_bundle(), "", lambda: _STATUS)
    diagnoser: Any = None
    app.include_router(routes(diagnoser, metrics, lambda: _STATUS, _bundle(), ""))
    app.include_router(scan_routes(None, None, metrics))
    return app.openapi()


def _request(route: Mapping[str, Any]) -> Iterator[str]:
    for kind, body in route.get("requestBody", {}).get("content", {}).items():
        yield f"The request is `{kind}`:\n"
        yield from _fields(body["schema"])


def _answers(route: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for status, answer in route["responses"].items():
        (kind, body), *_ = answer.get("content", {"": {}}).items()
        value = _kind(body["schema"]) if body.get("schema") else code(kind) if kind else ""
        rows.append((code(status), value, escape(answer["description"])))
    yield table(("status", "body", "meaning"), rows)


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    rows = [
        (code(key), _kind(value), "yes" if key in required else "", escape(_about(value)))
        for key, value in schema.get("properties", {}).items()
    ]
    if rows:
        yield table(("field", "value", "always there", "meaning"), rows)


def _about(value: Mapping[str, Any]) -> str:
    return str(value.get("description", ""))


def _kind(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{code(name)}](#http-{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_kind(kind) for kind in value["anyOf"])
    if value.get("type") == "array":
        parts = value.get("prefixItems")
        if parts:
            return "[" + ", ".join(_kind(part) for part in parts) + "]"
        return f"list of {_kind(value.get('items', {}))}"
    return plain_kind(value)
