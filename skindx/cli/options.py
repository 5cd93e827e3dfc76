"""Options that several verbs share, and docstrings laid out as help."""

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.console import Console


Split = Literal["train", "val", "calibration", "test"]

Part = Literal["train", "val", "calibration", "test", "all"]

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=V", help="Override one setting; may be repeated."),
]

MissRate = Annotated[
    float | None,
    typer.Option(
        metavar="RATE",
        help="Acceptable share of missed urgent lesions: 0.02, 0.05 or 0.1, if the bundle has a "
        "threshold for it; default: 0.05. A lower rate makes more answers urgent.",
    ),
]


Prevalence = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="YAML or JSON with the share of each class among the photos you see. It corrects the "
        "shown probabilities and predictive values; sets and the urgent threshold stay.",
    ),
]


Expect = Annotated[
    str | None,
    typer.Option(
        metavar="DIGEST",
        help="Refuse a bundle with another digest (at least the first 16 digits). The hashes in a "
        "bundle show that it is complete, not who made it.",
    ),
]


CasebookPath = Annotated[
    str,
    typer.Argument(help="The case book: a SQLite file, or a URL such as postgresql+psycopg://…"),
]
CasebookKey = Annotated[
    Path | None,
    typer.Option(
        "--casebook-key",
        metavar="FILE",
        help="Its key file; default: that of SKINDX_CASEBOOK_KEYS, then BOOK.keys.",
    ),
]


def console() -> "Console":
    """Return a console wide enough for the tables, also where there is no terminal to ask."""
    from rich.console import Console

    return Console(width=max(Console().width, 110))


_TAG = re.compile(r"\[(?=[a-zA-Z/@#])")
"""What rich would take for the beginning of a style, and leave out."""


class _PlainHelp:
    """Help in which a flag stands without a type: it takes no value."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(parameter, "is_bool_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        super().format_help(ctx, formatter)  # type: ignore[misc]


class PlainCommand(_PlainHelp, TyperCommand):
    """A verb."""


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of verbs."""


def lay_out(app: typer.Typer) -> None:
    """Set the help of each command, also of those in groups, from its docstring."""
    if not isinstance(app.info.cls, type):
        app.info.cls = PlainGroup
    for command in app.registered_commands:
        command.help = readable(command.help or inspect.getdoc(command.callback) or "")
        if command.cls in {None, TyperCommand}:
            command.cls = PlainCommand
    for group in app.registered_groups:
        if group.typer_instance:
            lay_out(group.typer_instance)


def readable(docstring: str) -> str:
    """Return a docstring whose paragraphs are one line each, for typer to wrap."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))
    return _TAG.sub(r"\\[", "\n\n".join(paragraphs))
