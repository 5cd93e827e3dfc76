"""Verbs that other distributions add: entry points of the group `skindx.verbs`.

An entry point names a `typer.Typer`. It is looked for and imported when its verb is called:
`skindx --help` reads no metadata of packages, which takes longer than all the rest of it.
"""

from typing import Any

import typer

from skindx import __version__
from skindx.cli.options import GONE, PlainGroup, lay_out, refuse_special_files
from skindx.core.errors import UserError

GROUP = "skindx.verbs"
KNOWN = {"bench": "skindx-bench"}
"""Verbs that `skindx --help` lists whether they are installed or not, and who brings them."""


class VerbGroup(PlainGroup):
    """The verbs of skindx, and those that other distributions add."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that `args` name; raises UserError for one that cannot be imported."""
        name = args[0] if args else ""
        if name in GONE:
            raise UserError(f"skindx {name} is gone since 1.0: {GONE[name]}.")
        if name in KNOWN or name not in self.commands:
            complete(self, name)
        return super().resolve_command(ctx, args)


def complete(group: Any, name: str) -> None:
    """Add an added verb to a group of commands, in the place of what stood there for its help.

    Nothing happens for a name that no installed distribution adds. Raises UserError for one of
    KNOWN that is missing or has another version than skindx, and for one that fails to import.
    """
    from importlib.metadata import entry_points

    entries = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    needed = KNOWN.get(name)
    if not entries:
        if needed:
            raise UserError(
                f"skindx {name} needs {needed}, which is not installed: install {needed} "
                f"{__version__}, or run python -m {needed.replace('-', '_')} from its folder."
            )
        return
    entry = entries[0]
    distribution = entry.dist.name if entry.dist else entry.value
    version = entry.dist.version if entry.dist else ""
    if needed and version != __version__:
        raise UserError(
            f"{distribution} has version {version}, and this is skindx {__version__}: install "
            f"{needed} {__version__}."
        )
    try:
        app = entry.load()
    except Exception as error:  # code of others: whatever it raises, the verb is not there
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"skindx {name} cannot be loaded from {distribution} ({reason}); reinstall or remove "
            f"{distribution}."
        ) from error
    if not isinstance(app, typer.Typer):
        raise UserError(
            f"skindx {name} of {distribution} is a {type(app).__name__} and no typer.Typer; "
            f"remove {distribution}."
        )
    lay_out(app)
    refuse_special_files(app)
    command = typer.main.get_command(app)
    command.name = name
    group.commands[name] = command
