"""The page of the command line, from the verbs as typer knows them."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from generators.markdown import code, escape, prose, table

_INTRODUCTION = """# Command line

`skindx VERB --help` prints the same text in the terminal. A mistake ends with one sentence and
exit code 2; a job that failed ends with exit code 1; a job that was stopped with Ctrl-C ends with
130, and the same command goes on with it.
"""


def command_line() -> str:
    """Return the page."""
    from skindx.cli import app
    from skindx.cli.options import KNOWN, complete

    parts, verbs = [_INTRODUCTION], typer.main.get_command(app)
    for name in KNOWN:
        complete(verbs, name)
    for words, command in _leaves(verbs, ("skindx",)):
        parts += [f"## {code(' '.join(words))}\n", _usage(words, command), *_help(command)]
        parts += [_parameters(command)]
    return "\n".join(parts)


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if not children:
        if complete := getattr(command, "complete", None):  # of what only its help names
            complete()
        yield words, command
        return
    if getattr(command, "subjects", False):  # they have the same options: one section for all
        yield words, command
        return
    for name, child in children.items():
        if not child.hidden:
            yield from _leaves(child, (*words, name))


def _parameters_of(command: Any) -> list[Any]:
    """Return what a command takes; of a group of subjects, what each of them takes."""
    if not getattr(command, "subjects", False):
        return list(command.params)
    of_one = next(iter(command.commands.values())).params
    return [parameter for parameter in of_one if not getattr(parameter, "hidden", False)]


def _usage(words: tuple[str, ...], command: Any) -> str:
    arguments = ["SUBJECT"] if getattr(command, "subjects", False) else []
    for parameter in _parameters_of(command):
        if not _is_option(parameter):
            name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
            arguments.append(name if parameter.required else f"[{name}]")
        elif parameter.required:
            arguments.append(f"{parameter.opts[0]} {parameter.metavar or parameter.name.upper()}")
    return f"```text\n{' '.join((*words, *arguments, '[OPTIONS]'))}\n```\n"


def _help(command: Any) -> Iterator[str]:
    """Return the paragraphs of a verb's help; an example becomes a block."""
    for paragraph in (command.help or "").replace("\\[", "[").split("\n\n"):
        lead, found, example = paragraph.rpartition(": skindx ")
        if found and "." not in lead:
            yield f"{escape(lead)}:\n\n```sh\nskindx {example.rstrip('.')}\n```\n"
        else:
            yield prose(paragraph) + "\n"


def _parameters(command: Any) -> str:
    rows = []
    for parameter in _parameters_of(command):
        names = [*parameter.opts, *parameter.secondary_opts]
        if not _is_option(parameter):
            names = [parameter.name.upper()]
        about = escape(getattr(parameter, "help", None) or "")
        if parameter.required:
            about += " *Required.*"
        rows.append((", ".join(map(code, names)), _values(parameter), _default(parameter), about))
    return table(("option", "value", "default", "meaning"), rows) if rows else ""


def _is_option(parameter: Any) -> bool:
    return any(name.startswith("-") for name in parameter.opts)


def _default(parameter: Any) -> str:
    default = parameter.default
    return "" if default in (None, "", False, ()) or callable(default) else code(default)


def _values(parameter: Any) -> str:
    if getattr(parameter, "metavar", None):
        return code(parameter.metavar)
    return _named(parameter.type_descriptor.annotation)


def _named(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(map(code, inner))
    if origin in (Union, types.UnionType, Annotated, list, tuple):
        kinds = inner[:1] if origin is Annotated else inner
        return " or ".join(_named(kind) for kind in kinds if kind not in (type(None), ...))
    name = getattr(annotation, "__name__", str(annotation))
    return {"Path": "path", "str": "text", "int": "whole number", "float": "number"}.get(
        name, "" if name == "bool" else name
    )
