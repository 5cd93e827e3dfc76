"""Pipes, sockets and devices among what a command is given: refused before anything waits."""

import functools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from skindx.core.errors import UserError

_DEEPEST, _MOST = 3, 20_000
"""Of a folder: levels and entries that are looked at, a moment's work."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special_files(app: typer.Typer) -> None:
    """Let every command, also of groups, refuse a path that is no plain file or folder.

    A pipe that nobody writes to would hold its reader for ever.
    """
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _checking(command.callback)
    for group in app.registered_groups:
        if group.typer_instance:
            refuse_special_files(group.typer_instance)


def check(path: Path) -> None:
    """Raise UserError for a pipe, socket or device, also within a folder."""
    for file, mode in _modes(path):
        what = _KINDS.get(stat.S_IFMT(mode))
        if what and os.fspath(file) != os.devnull:
            raise UserError(
                f"{file} is {what}, and a plain file is needed there; take it away, or write what "
                "comes out of it to a file first."
            )


def _checking(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def checked(*values: Any, **named: Any) -> Any:
        for value in (*values, *named.values()):
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, Path | str) and one:
                    check(Path(one))
        return verb(*values, **named)

    return checked


def _modes(path: Path) -> Iterator[tuple[Path, int]]:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # missing, or no path at all
        return
    yield path, mode
    if not stat.S_ISDIR(mode):
        return
    folders, seen = [(os.fspath(path), 1)], 0
    while folders:
        folder, depth = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MOST:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST:
                            folders.append((entry.path, depth + 1))
                    elif not entry.is_file():  # by what a link leads to
                        yield from _special(entry)
        except OSError:
            continue


def _special(entry: "os.DirEntry[str]") -> Iterator[tuple[Path, int]]:
    try:
        yield Path(entry.path), entry.stat().st_mode
    except OSError:  # a link that leads nowhere
        return
