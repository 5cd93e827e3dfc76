"""How a child Python is started: the folder that somebody stands in is no place for modules.

`python -m`, `python -c` and the processes of multiprocessing look for modules in the current folder
first: a `numpy.py` beside photos would be run. PYTHONPATH, which a person sets, still counts.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

_VARIABLE = "PYTHONSAFEPATH"
_PATH = "PYTHONPATH"


def python_command(*arguments: str, isolated: bool = False) -> list[str]:
    """Return the command of a child of this interpreter; `child_environment` is for its own.

    `isolated`: nothing of the environment and of the user's folders counts either.
    """
    return [sys.executable, "-I" if isolated else "-P", *arguments]


def child_environment(*more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, what is added to it, and what keeps the folder out."""
    environment = dict(os.environ)
    for variables in more:
        environment |= variables
    return environment | {_VARIABLE: "1"}


def keep_folder_out(package: str) -> None:
    """Keep the current folder out of what all children of this process, and theirs, import.

    For a process of our own, not for a program that imports skindx. `package` is still found
    where it was found only by standing in its checkout.
    """
    os.environ[_VARIABLE] = "1"
    spec = find_spec(package)
    root = str(Path(spec.origin).parents[1]) if spec and spec.origin else ""
    if root and root not in sys.path:
        sys.path.append(root)
        given = os.environ.get(_PATH)
        os.environ[_PATH] = f"{given}{os.pathsep}{root}" if given else root


def spawn_context() -> SpawnContext:
    """Return multiprocessing's context of new interpreters, which do not import from the folder."""
    from multiprocessing.resource_tracker import ensure_running

    with _folder_kept_out():
        ensure_running()  # a process of its own, which the first lock of a pool would start
    return _SafeContext()


class _SafeProcess(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (its name in multiprocessing)
        with _folder_kept_out():
            return SpawnProcess._Popen(process_obj)


class _SafeContext(SpawnContext):
    Process = _SafeProcess


@contextmanager
def _folder_kept_out() -> Iterator[None]:
    """Set the variable for what is started inside: these processes take no environment."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            with suppress(KeyError):
                del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
