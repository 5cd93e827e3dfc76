"""What the `skindx` commands of the guide's shell blocks mean to the command line."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from guide_pages import Block

from skindx.cli import app
from skindx.cli.options import KNOWN, complete


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the verb that words name, and the words after it."""
    command = _all_verbs()
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    if getattr(command, "subjects", False) and command.name in command.commands:
        command = command.commands[command.name]  # the subject that a group is called by
    return command, words


@cache
def _all_verbs() -> Any:
    command = typer.main.get_command(app)
    for name in KNOWN:
        complete(command, name)
    return command


def options_of(command: Any) -> set[str]:
    given = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    return given | {"-h", "--help"}


def settings_of(blocks: list[Block]) -> Iterator[tuple[str, Path | None, list[str]]]:
    """Yield the command, the file of settings and each `--set` of those that take them."""
    for words in (words for block in blocks for words in block.commands()):
        command, arguments = command_of(words)
        if words[:1] not in (["build"], ["train"], ["bench"]) or "help=1" in arguments:
            continue
        given = command.make_context(command.name, list(arguments)).params
        if "sets" not in given:
            continue
        file = next((given[key] for key in ("source", "config") if given.get(key)), None)
        path = Path(file) if file and Path(file).is_file() else None
        yield command.name, path, given["sets"] or []
