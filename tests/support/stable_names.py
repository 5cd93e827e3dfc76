"""The names that skindx promises to keep, read from the code, one a line.

    python tests/support/stable_names.py docs/reference/stable-names.txt

writes the list; test_stable_names.py fails when a line of it is no longer true.
"""

import inspect
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

LISTED = ROOT / "docs/reference/stable-names.txt"


def stable_names() -> list[str]:
    """Return all lines, sorted."""
    parts = (python_names(), verbs(), settings(), columns(), http(), prometheus())
    return sorted({line for part in parts for line in part})


def python_names() -> Iterator[str]:
    """`python skindx.load digest`: a name, and each parameter and member of it."""
    import skindx

    for name in skindx.__all__:
        yield f"python skindx.{name}"
        home = getattr(skindx, name)
        if inspect.isclass(home) and home.__module__.startswith("skindx.api"):
            for member, value in vars(home).items():
                if not member.startswith("_"):
                    yield f"python skindx.{name}.{member}"
                    yield from _parameters(f"skindx.{name}.{member}", value)
        elif not inspect.isclass(home):
            yield from _parameters(f"skindx.{name}", home)


def _parameters(name: str, value: object) -> Iterator[str]:
    if callable(value):
        for parameter in inspect.signature(value).parameters:
            if parameter != "self":
                yield f"python {name} {parameter}"


def verbs() -> Iterator[str]:
    """`verb train --config`: each verb but the benches, and each option."""
    import typer

    from skindx.cli import app
    from skindx.cli.options import complete

    group = typer.main.get_command(app)
    complete(group, "plan")
    left: deque[tuple[str, Any]] = deque([("verb", group)])
    while left:
        words, command = left.popleft()
        if words != "verb":
            yield words
        for parameter in command.params:
            options = [*parameter.opts, *parameter.secondary_opts]
            if not getattr(parameter, "hidden", False):
                yield from (f"{words} {one}" for one in options if one.startswith("-"))
        for name, child in getattr(command, "commands", {}).items():
            if not child.hidden and name != "bench":
                left.append((f"{words} {name}", child))


def settings() -> Iterator[str]:
    """`train recipe.epochs`, `recipe split.folds`, `bundle members[].name`: a key by its path.

    Kinds of the lab and of strangers are no promise of skindx; those of its kit are.
    """
    from skindx.core.kinds import METHODS
    from skindx.data.recipe import BuildSettings
    from skindx.models.bundle.bundle_index import BundleSpec
    from skindx.training.config.parallel_form import PARALLEL_FORMS
    from skindx.training.config.run import TrainSettings

    roots = (("recipe", BuildSettings), ("train", TrainSettings), ("bundle.json", BundleSpec))
    added = tuple(
        f"({kind})"
        for kind, point in PARALLEL_FORMS.added.items()
        if point.dist is None or point.dist.name != METHODS
    )
    for name, root in roots:
        for path in _keys(root.model_json_schema()):
            if not any(kind in path for kind in added):
                yield f"setting {name} {path}"


def _keys(schema: Any) -> Iterator[str]:
    from generators.schema import references

    definitions = schema.get("$defs", {})
    # With the definitions around a node: one is listed wherever it stands, but not inside itself.
    left: deque[tuple[Any, str, tuple[str, ...]]] = deque([(schema, "", ())])
    while left:
        node, path, around = left.popleft()
        for key, value in node.get("properties", {}).items():
            yield f"{path}{key}"
            for name, suffix in references(value):
                if name not in around:
                    kind = definitions[name].get("properties", {}).get("kind", {}).get("const")
                    marked = f"{path}{key}{suffix}" + (f"({kind})" if kind else "")
                    left.append((definitions[name], f"{marked}.", (*around, name)))


def columns() -> Iterator[str]:
    """`column manifest.parquet label`."""
    import dataclasses

    from skindx.data.answer_log import COLUMNS
    from skindx.data.manifest import Issue, Record
    from skindx.scan.outputs.scan_files import _columns
    from skindx.scan.outputs.scan_result import Summary

    tables = {
        "manifest.parquet": [field.name for field in dataclasses.fields(Record)],
        "issues.parquet": [field.name for field in dataclasses.fields(Issue)],
        "decisions.csv": COLUMNS,
        "lesions.parquet": [name for name, _ in _columns()],
        "scan.json": list(Summary.model_fields),
    }
    for table, names in tables.items():
        yield from (f"column {table} {name}" for name in names)


def http() -> Iterator[str]:
    """`http POST /v1/diagnose`, and `http Diagnosis.version`: a key of an answer."""
    from generators.http import _openapi

    api = _openapi()
    for path, methods in api["paths"].items():
        for method, route in methods.items():
            yield f"http {method.upper()} {path}"
            given = [one["name"] for one in route.get("parameters", [])]
            yield from (f"http {method.upper()} {path} {name}" for name in given)
    for name, schema in api["components"]["schemas"].items():
        if not name.startswith(("HTTPValidation", "ValidationError")):
            yield from (f"http {name}.{key}" for key in schema.get("properties", {}))


def prometheus() -> Iterator[str]:
    """`metric skindx_...`."""
    import re

    from generators.http import prometheus_names

    for name in re.findall(r"^\| `(\w+)`", prometheus_names(), re.MULTILINE):
        yield f"metric {name}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(stable_names()) + "\n", encoding="utf-8")
