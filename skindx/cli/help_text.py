"""Docstrings as help: paragraphs that fit any terminal, and [brackets] that stay."""

import inspect
import re

import typer

_TAG = re.compile(r"\[(?=[a-zA-Z/@#])")
"""What rich would take for the beginning of a style, and leave out."""


def lay_out(app: typer.Typer) -> None:
    """Set the help of each command, also of those in groups, from its docstring."""
    for command in app.registered_commands:
        command.help = readable(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance:
            lay_out(group.typer_instance)


def readable(docstring: str) -> str:
    """Return a docstring whose paragraphs are one line each, for typer to wrap."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))
    return _TAG.sub(r"\\[", "\n\n".join(paragraphs))
