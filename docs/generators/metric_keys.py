"""The page of metrics.json: each key with a sentence, from its dataclass or metric_keys.yaml."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from generators.markdown import code, escape, prose, table
from skindx.evaluation.figures import FIGURES, Scores
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
        rows = [(code(key), escape(text)) for key, text in sentences(kind).items()]
        about = prose(inspect.cleandoc(kind.__doc__ or ""))
        parts += [f"## {kind.__name__}\n", f"{about}\n", table(("key", "meaning"), rows)]
    return "\n".join(parts)


def sentences(kind: type) -> dict[str, str]:
    """Return what each key of a dataclass means. Raises SystemExit for a key without a sentence."""
    written = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    headline = {key: figure.meaning for key, figure in FIGURES.items()}
    own = written.get(kind.__name__, {}) | _docs(kind)
    if kind is Scores:
        own |= headline
    known = written["any"] | own
    names = [one.name for one in dataclasses.fields(kind)]
    if missing := [name for name in names if name not in known]:
        raise SystemExit(
            f"{kind.__name__} has no sentence for {', '.join(missing)}; write a docstring below "
            "the field, or a line in docs/generators/metric_keys.yaml."
        )
    return {name: known[name] for name in names}


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
