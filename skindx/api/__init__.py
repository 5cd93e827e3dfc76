"""The public Python interface; `import skindx` gives its names without loading torch."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from skindx.core.errors import UserError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class UnknownKeyword(UserError, TypeError):  # noqa: N818
    """A keyword that a function does not take."""


def known_keywords(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function refuse an unknown keyword with the nearest valid one."""
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind is not parameter.POSITIONAL_ONLY
    ]

    @functools.wraps(function)
    def checked(*values: Parameters.args, **named: Parameters.kwargs) -> Result:
        for name in named:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise UnknownKeyword(
                    f"{function.__name__}: unknown keyword {name!r}; {hint}Valid: "
                    f"{', '.join(known)}."
                )
        return function(*values, **named)

    return checked
