"""What settings classes say of themselves and of each of their fields."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel

from generators.markdown import prose


def about(model: type[BaseModel]) -> str:
    """Return a class's own docstring; an inherited one says nothing of it."""
    return prose(inspect.cleandoc(model.__doc__)) + "\n" if model.__doc__ else ""


def models(annotation: Any) -> Iterator[type[BaseModel]]:
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


def field_docs(model: type[BaseModel]) -> dict[str, str]:
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
