"""The page of metrics.json: each key with what its dataclass says of it."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from generators.markdown import code, escape, prose, table
from skindx.evaluation.figures import FIGURES
from skindx.evaluation.score import Evaluation

_LEAD = """# Figures of an evaluation

`metrics.json` and `report.scores` in Python have these keys. A figure with an interval has
`value`, `low` and `high` at 95 %, over groups; a figure that is not defined is `null`.
"""


def metric_keys() -> str:
    """Return the page."""
    headline = [
        (
            code(key),
            escape(figure.title.replace("{k}", "5").replace("{3}", "3")),
            escape(figure.meaning),
        )
        for key, figure in FIGURES.items()
    ]
    parts = [_LEAD, "## Headline figures\n", table(("key", "name", "meaning"), headline)]
    for kind in _kinds(Evaluation):
        docs = _docs(kind)
        rows = [
            (code(one.name), escape(docs.get(one.name, one.name.replace("_", " "))))
            for one in dataclasses.fields(kind)
        ]
        about = prose(inspect.cleandoc(kind.__doc__ or ""))
        parts += [f"## {kind.__name__}\n", f"{about}\n", table(("key", "meaning"), rows)]
    return "\n".join(parts)


def _kinds(root: type) -> Iterator[type]:
    """Yield the dataclass and every one that it holds, once, the outer ones first."""
    waiting: list[Any] = [root]
    seen: set[Any] = set()
    for node in waiting:
        if dataclasses.is_dataclass(node) and isinstance(node, type) and node not in seen:
            seen.add(node)
            yield node
            waiting += get_type_hints(node).values()
        waiting += get_args(node)


def _docs(kind: type) -> dict[str, str]:
    """Return field -> the docstring below it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(inspect.cleandoc(str(below.value.value)).split())
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }
