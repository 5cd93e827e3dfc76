"""What verbs share: options, help from docstrings, the refusal of special files, added verbs.

Other distributions add verbs as entry points of the group `skindx.verbs`, each a `typer.Typer`. One
is looked for and imported when its verb is called: `skindx --help` reads no metadata of packages,
which takes longer than all the rest of it.
"""

import functools
import inspect
import itertools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from skindx.core.errors import UserError
from skindx.core.kinds import LAB, METHODS, entry_of, load_entry, load_object, missing
from skindx.core.removed_names import (
    refuse_removed_key,
    refuse_removed_options,
    refuse_removed_verb,
)
from skindx.core.startup import STOPPED
from skindx.core.text import printable

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


if TYPE_CHECKING:
    BundleText = Path  # a verb gets the path
else:

    class BundleText(str):
        """What is typed for a bundle, a path or an installed one's name, until `_resolved`."""

        __slots__ = ()


BundlePath = Annotated[
    BundleText,
    typer.Argument(
        parser=BundleText,
        metavar="BUNDLE",
        help="A bundle, RUN/bundle, or an installed one's name.",
    ),
]


Detector = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="A detector for scans in the place of the bundle's, such as models/lesion-detector.",
    ),
]
Language = Annotated[str, typer.Option(metavar="CODE", help="Language of the answer: en or es.")]
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
    """Help in which a flag stands without a type: it takes no value; errors know their verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words after a verb; those that are gone answer before anything is missing."""
        words = args
        if hasattr(self, "commands"):  # of a group: its verb reads the rest
            words = list(itertools.takewhile(lambda word: word.startswith("-"), args))
        parameters = self.get_params(ctx)  # type: ignore[attr-defined]
        has = {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
        refuse_removed_options(_verb(ctx), words, has)
        if "--set" in has:
            _heed_sets(_verb(ctx), words)
        try:
            return list(super().parse_args(ctx, args))  # type: ignore[misc]
        except _UNREADABLE as error:
            error.ctx = getattr(error, "ctx", None) or ctx
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(parameter, "is_bool_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        super().format_help(ctx, formatter)  # type: ignore[misc]


class PlainCommand(_PlainHelp, TyperCommand):
    """A verb."""


def _verb(ctx: Any) -> str:
    """Return the words that name a verb, `plan make`; python -m skindx is skindx too."""
    return str(ctx.command_path.removeprefix(ctx.find_root().info_name).strip())


_SETTINGS = {
    "build": ("recipe", "skindx.data.recipe:BuildSettings"),
    "train": ("train", "skindx.training.config.run:TrainSettings"),
    "plan make": ("train", "skindx.training.config.run:TrainSettings"),
    "plan measure": ("train", "skindx.training.config.run:TrainSettings"),
}
"""Verb -> what `--set` changes: as `removed_names` calls it, and its class."""


def _heed_sets(verb: str, words: Sequence[str]) -> None:
    """Refuse keys that are gone, and list the keys for `--set help=1`, before a path is missing."""
    for place, word in enumerate(words):
        if verb not in _SETTINGS or word == "--":
            return
        option, equals, value = word.partition("=")
        if option != "--set":
            continue
        assignment = value if equals else words[place + 1] if place + 1 < len(words) else ""
        root, settings = _SETTINGS[verb]
        key, _, chosen = assignment.partition("=")
        if key == "help":
            keys = load_object(settings).model_fields
            raise UserError(
                "--set KEY.help=1 lists the settings below KEY; choose KEY from: "
                f"{', '.join(keys)}."
            )
        refuse_removed_key(root, key, chosen)


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of verbs; a command line that cannot be read is one sentence, without a box."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that `args` name; raises UserError for one that is gone."""
        if args and args[0] not in self.commands:
            refuse_removed_verb(_verb(ctx), args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # of which typer makes an exit without a word
            print(STOPPED, file=sys.stderr)
            raise typer.Exit(130) from None

    def main(self, *args: Any, **more: Any) -> Any:
        """Run a command line as typer does."""
        more, exits = {**more, "standalone_mode": False}, more.get("standalone_mode", True)
        if not exits:
            return super().main(*args, **more)
        try:
            code = super().main(*args, **more)
        except typer.Abort as error:  # at a question
            asked = isinstance(error.__context__, KeyboardInterrupt)
            print(STOPPED if asked else "Aborted.", file=sys.stderr)
            sys.exit(130 if asked else 1)
        except _UNREADABLE as error:
            if type(error).__name__ != "NoArgsIsHelpError":  # then the help was printed
                print(f"error: {_sentence(error)}", file=sys.stderr)
            sys.exit(error.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


_UNREADABLE: Any = next(kind for kind in typer.BadParameter.__mro__ if "Click" in kind.__name__)
"""The base of typer's errors, which has no public name."""
_NO_INTEGER = "a valid integer, unable to parse string as an integer"
_NO_NUMBER = "a valid number, unable to parse string as a number"


def _sentence(error: Any) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message.replace("Value error, ", "").replace("Input should be", "it must be")
    message = message.replace(_NO_INTEGER, "a whole number").replace(_NO_NUMBER, "a number")
    verb = "skindx"
    if error.ctx:  # `python -m skindx` is skindx too
        root = error.ctx.find_root().info_name
        verb = root if "skindx_bench" in root else verb
        verb += error.ctx.command_path.removeprefix(root)
    end = "" if message.endswith("?") else ";"
    return printable(f"{message}{end} `{verb} --help` lists what it takes.")


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


_DEEPEST, _MOST = 3, 20_000
"""Most levels and entries of a folder that are examined, which takes a moment."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special_files(app: typer.Typer) -> None:
    """Let every command, also of groups, refuse a path that is no plain file or folder.

    A pipe that nobody writes to would hold its reader for ever. A bundle's name becomes its path.
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
                f"{file} is {what}, but a plain file is needed; save its contents to a plain "
                "file and give that, or move it out of the folder."
            )


def _checking(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def checked(*values: Any, **named: Any) -> Any:
        values = tuple(map(_resolved, values))
        named = {name: _resolved(value) for name, value in named.items()}
        for value in (*values, *named.values()):
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, Path | str) and one:
                    check(Path(one))
        return verb(*values, **named)

    return checked


def _resolved(value: Any) -> Any:
    """Return the path for what was typed for a bundle, also within a list; others as they are."""
    if isinstance(value, list | tuple):
        return type(value)(map(_resolved, value))
    if type(value) is not BundleText:
        return value
    from skindx.models.bundle.installed import bundle_path

    return bundle_path(str(value))


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


GROUP = "skindx.verbs"
KNOWN = {"bench": LAB, "plan": METHODS}
"""Verbs that `skindx --help` lists whether they are installed or not, and who brings them."""


class VerbGroup(PlainGroup):
    """The verbs of skindx, and those that other distributions add."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that `args` name; raises UserError for one that cannot be imported."""
        name = args[0] if args else ""
        if name in KNOWN or name not in self.commands:
            complete(self, name)
        return super().resolve_command(ctx, args)


def complete(group: Any, name: str) -> None:
    """Add an added verb to a group of commands, in the place of what stood there for its help.

    Nothing happens for a name that no installed distribution adds. Raises UserError for one of
    KNOWN that is missing or has another version than skindx, and for one that fails to import.
    """
    entry = entry_of(GROUP, name)
    if entry is None:
        if needed := KNOWN.get(name):
            raise UserError(f"{missing(f'skindx {name}', needed)}.")
        return
    app = load_entry(entry, f"skindx {name}")
    if not isinstance(app, typer.Typer):
        distribution = entry.dist.name if entry.dist else entry.value
        raise UserError(
            f"the command `skindx {name}` from the package {distribution} is a "
            f"{type(app).__name__}, not a typer.Typer; uninstall {distribution}."
        )
    lay_out(app)
    refuse_special_files(app)
    command = typer.main.get_command(app)
    command.name = name
    group.commands[name] = command
