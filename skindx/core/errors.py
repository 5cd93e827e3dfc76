"""Errors and notes that are one sentence: a user's, a full disk, a keyword, a name that goes."""

import difflib
import errno
import functools
import inspect
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class UserError(ValueError):
    """Bad input, reported in one sentence: the value, what was allowed, what to do next.

    The command line prints it without a traceback and exits with code 2.
    """


_FOLDERS = {
    "bundle": ("bundle.json", "a bundle", "RUN/bundle, which `skindx train` wrote"),
    "data": ("manifest.parquet", "a dataset", "a folder that `skindx build` wrote"),
}
"""Usual name in a run -> the file by which it is known, what it is called, and what makes it."""


def instead_of(path: Path, wanted: str) -> str:
    """Return what to give in place of a path that is no bundle, or no dataset ("data").

    The folder around it, in it or beside it if that is one; or else what the path is; or "".
    """
    mark, _, made = _FOLDERS[wanted]
    nearest = [path.parent] if path.name == mark else [path / wanted, path.parent / wanted]
    if near := next((folder for folder in nearest if (folder / mark).is_file()), None):
        return f"give {near}"
    others = (called for other, called, _ in _FOLDERS.values() if (path / other).is_file())
    if is_one := "a file" if path.is_file() else next(others, ""):
        return f"it is {is_one}; give {made}"
    return ""


class JobError(RuntimeError):
    """A process that was started for the user failed; see its error above this sentence.

    The command line prints it without a second traceback and exits with code 1.
    """


class DeprecatedName(FutureWarning):
    """A stable name is used that a later version will not have; the command line prints it."""


@dataclass(frozen=True)
class Deprecation:
    """What to use in place of a name, and the versions that warn first and lack it first."""

    instead: str
    since: str
    goes: str


DEPRECATED = {
    "skindx doctor --no-prebuild": Deprecation("remove it, because it has no effect", "1.0", "1.2")
}
"""Every stable name that goes: each warns for one minor version or more (docs/project/stability.md)
and its line goes with it."""


def deprecated(name: str, *, stacklevel: int = 2) -> None:
    """Warn that a name of DEPRECATED will be removed; the warning points to the caller's caller."""
    of = DEPRECATED[name]
    sentence = f"{name} will be removed in skindx {of.goes}; {of.instead}."
    warnings.warn(sentence, DeprecatedName, stacklevel=stacklevel + 1)


FULL_DISK = 5
"""Exit code by which a process of ours says that it had no room to write."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_LITTLE_BYTES = 65_536


def no_room(error: BaseException | None) -> bool:
    """Tell whether a full disk, or a quota that is used up, is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False


def is_full(folder: Path) -> bool:
    """Tell whether next to nothing can be written in a folder."""
    try:
        return shutil.disk_usage(folder).free < _LITTLE_BYTES
    except OSError:
        return False


def full_disk(folder: Path) -> UserError:
    """Return the error of a job that found no room for what it makes in `folder`."""
    return UserError(
        f"the disk of {folder} is full; free some space on it and run the same command again, "
        "which continues from the finished part."
    )


@contextmanager
def needs_room(folder: Path) -> Iterator[None]:
    """Raise UserError where the block finds no room in `folder`; other errors stay as they are.

    Some libraries say only that fewer bytes were written than asked for: then the disk is asked.
    """
    try:
        yield
    except OSError as error:
        if no_room(error) or (error.errno is None and is_full(folder)):
            raise full_disk(folder) from None
        raise


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
        refuse_unknown(function.__name__, named, known)
        return function(*values, **named)

    return checked


def refuse_unknown(what: str, named: Iterable[str], known: Sequence[str]) -> None:
    """Raise UnknownKeyword for a name that is not known, with the nearest one."""
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownKeyword(
                f"{what} has no keyword {name!r}; {hint}Valid: {', '.join(known)}."
            )
