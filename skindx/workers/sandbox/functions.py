"""Functions that a sandboxed process may run: those of this package with the mark."""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

Work = Callable[[Sequence[Path]], Iterator[list[Any] | None]]
"""Yields None after each file, and at the end a list with the answers to all of them."""

MakeWork = Callable[[dict[str, Any]], Work]
"""Makes the work from a job of plain values."""

Prepare = Callable[[], None]
"""Imports all that the work needs, since an import might fail once the memory is limited."""

_PREPARE = "_sandboxed_after"
_MODULE = re.compile(r"skindx(\.[A-Za-z_]\w*)+")

M = TypeVar("M", bound=MakeWork)


def sandboxed(prepare: Prepare) -> Callable[[M], M]:
    """Mark a function of a module of skindx as one that a sandboxed process may run.

    The process that forks the others calls `prepare`, so that they find its work done.
    """

    def mark(make_work: M) -> M:
        setattr(make_work, _PREPARE, prepare)
        return make_work

    return mark


def reference(make_work: MakeWork) -> str:
    """Return MODULE:NAME of a marked function. Raises ValueError for any other."""
    name = f"{make_work.__module__}:{getattr(make_work, '__name__', '')}"
    if resolve(name) is not make_work:
        raise ValueError(f"{name} is another function")
    return name


def resolve(name: str) -> MakeWork:
    """Return the marked function at MODULE:NAME. Raises ValueError for any other reference."""
    module, _, function_name = name.partition(":")
    if not _MODULE.fullmatch(module) or not function_name.isidentifier():
        raise ValueError(f"{name!r} names no function of skindx")
    function = getattr(import_module(module), function_name, None)
    if (
        not isinstance(function, FunctionType)
        or function.__module__ != module
        or not hasattr(function, _PREPARE)
    ):
        raise ValueError(f"{name!r} is not marked as @sandboxed")
    return function


def prepare(make_work: MakeWork) -> None:
    """Do what a marked function needs before its first call; a second time costs little."""
    getattr(make_work, _PREPARE)()


def for_each(answer: Callable[[Path], Any]) -> Work:
    """Return work that answers one file after the other."""

    def work(paths: Sequence[Path]) -> Iterator[list[Any] | None]:
        answers = []
        for path in paths:
            answers.append(answer(path))
            yield None
        yield answers

    return work
