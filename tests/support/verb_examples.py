"""The verbs of a command line, and the examples in their help."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from skindx import cli
from skindx.cli.options import KNOWN, complete


def verbs_of(*added: str) -> dict[str, Any]:
    """Return the verbs of the wheel by their words; or those of `added`, which others bring."""
    group: Any = typer.main.get_command(cli.app)
    for name in added:
        complete(group, name)
    chosen = added or tuple(name for name in group.commands if name not in KNOWN)
    return {words: verb for name in chosen for words, verb in _leaves(group.commands[name], name)}


def _leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    if command.hidden:
        return
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, child in command.commands.items():
        yield from _leaves(child, f"{words} {name}")


def examples(command: Any) -> list[str]:
    """Return the command lines after `Example:` in a verb's help."""
    text = (command.help or "").replace("\\[", "[")
    lines = re.findall(r"^Example: (skindx .+)$", text, re.MULTILINE)
    return [part for line in lines for part in line.split(" && ")]


def check_examples(verb: str, command: Any) -> None:
    """Fail unless a verb has an example, of which no option or argument is unknown or missing."""
    shown = examples(command)
    assert shown, verb
    for line in shown:
        words = shlex.split(line)[1:]
        count = len(verb.split())
        assert " ".join(words[:count]) == verb
        command.make_context(verb, words[count:])
