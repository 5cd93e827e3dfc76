"""The command line: one file a verb; each heavy import stands inside its verb.

A command that fails ends with one sentence and an exit code, and what it prints gives a terminal no
orders.
"""

import codecs
import errno
import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, TextIO

import typer

from skindx import __version__
from skindx.cli import boxes, casebook, scan
from skindx.cli.audit import audit, dedup
from skindx.cli.boxes import review
from skindx.cli.build import build
from skindx.cli.datasets import datasets
from skindx.cli.diagnose import diagnose
from skindx.cli.doctor import bench, completion, demo, doctor, plan
from skindx.cli.evaluate import adapt, compare, evaluate, features, leak, recompute
from skindx.cli.export import bundle, export, models
from skindx.cli.new import new
from skindx.cli.options import VerbGroup, lay_out, refuse_special_files
from skindx.cli.remove import publish, remove
from skindx.cli.serve import monitor, serve, user
from skindx.cli.train import train
from skindx.core.errors import DeprecatedName, JobError, UserError, no_room
from skindx.core.machine import go_offline, keep_folder_out, what_is_missing
from skindx.core.startup import STOPPED, collect_rarely, heed_interrupts
from skindx.core.text import printable

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors that a user can mend: another's folder, a full or read-only disk, a size limit."""


def _file_above(error: OSError) -> Path | None:
    """Return the file that stands where an error misses a folder, None for all other errors."""
    if error.errno not in (errno.ENOTDIR, errno.EEXIST) or error.filename is None:
        return None
    where = Path(os.fsdecode(error.filename))
    return next((path for path in (where, *where.parents) if path.is_file()), None)


def print_deprecations() -> None:
    """Let a warning about a name that goes be one sentence, without file and line."""
    show = warnings.showwarning

    def sentence(  # noqa: PLR0917 (as warnings calls it)
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, DeprecatedName):
            print(f"note: {message}", file=sys.stderr)
        else:
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = sentence


def _tell(line: str) -> None:
    with suppress(OSError):  # nobody reads it: the exit code says it still
        print(line, file=sys.stderr)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Exit with 2 for a user's mistake, 1 for a failed job, 130 for Ctrl+C; print one sentence.

    Any other error passes through with its traceback: it is a fault of ours.
    """
    try:
        yield
    except UserError as error:
        _tell(f"error: {printable(str(error))}")
        sys.exit(2)
    except JobError as error:
        # Several lines: it may end with those of the process that failed.
        lines = f"error: {error}".splitlines()
        _tell("\n".join(printable(line) for line in lines))
        sys.exit(1)
    except ModuleNotFoundError as error:
        if (sentence := what_is_missing(error)) is None:
            raise
        _tell(f"error: {sentence}")
        sys.exit(2)
    except OSError as error:
        if file := _file_above(error):
            _tell(f"error: {file} is a file, not a folder; give another folder.")
            sys.exit(2)
        if no_room(error) and error.filename is None:  # the message of every write
            _tell(f"error: {error.strerror}; make room and run the command again.")
            sys.exit(2)
        if error.errno == errno.ENAMETOOLONG:
            name = Path(os.fsdecode(error.filename or "")).name[:40]
            _tell(
                f"error: the name {name}… is longer than file systems allow (255 bytes a name, "
                "4096 a path); give a shorter one."
            )
            sys.exit(2)
        if error.errno not in _REFUSED or error.filename is None:
            raise
        where = re.sub(r"\.tmp-\w+$", "", str(error.filename))  # we wrote under another name
        advice = (
            "make room and run the command again"
            if no_room(error)
            else "check its permissions and the free space of its disk"
        )
        _tell(f"error: {where}: {error.strerror}; {advice}.")
        sys.exit(2)
    except KeyboardInterrupt:
        _tell(STOPPED)
        sys.exit(130)


_STYLES = re.compile(r"(\x1b\[[0-9;]*m|\x1b\[[0-9]*[ABGKJ]|\x1b\[\?25[lh]|[\n\r\t])")
"""What rich writes for colours and progress bars: nothing of it changes the terminal for good."""
_PLAIN = re.compile(r"([\n\r\t])")


class PrintableStream:
    """A text stream on which control characters become U+FFFD; to a terminal styles may pass.

    Undecodable bytes of file names become U+FFFD too, so that printing one is no error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._kept = _STYLES if stream.isatty() else _PLAIN

    def write(self, text: str) -> int:
        """Write text; the parts that are kept stand at odd places."""
        parts = self._kept.split(text)
        parts[::2] = map(printable, parts[::2])
        self._stream.write("".join(parts))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


_NEAREST = dict.fromkeys(range(0x2500, 0x2580), "+") | str.maketrans(
    "–—−‘’“”×·→≤≥─━│┃", "---''\"\"x*><>--||"
)
"""What is printed for characters that an encoding lacks, where Unicode knows no plain form."""


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream's encoding lacks by the nearest of ASCII, else by `?`."""
    assert isinstance(error, UnicodeEncodeError)
    letters = unicodedata.normalize("NFKD", error.object[error.start : error.end])
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return bare.translate(_NEAREST).encode("ascii", "replace").decode(), error.end


def guard_terminal() -> None:
    """Print through such streams from here on; a child's print what its encoding has."""
    codecs.register_error("skindx.nearest", _nearest)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, PrintableStream):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="skindx.nearest")
            setattr(sys, name, PrintableStream(stream))
    encoding = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    os.environ["PYTHONIOENCODING"] = f"{encoding}:replace"


app = typer.Typer(
    name="skindx",
    cls=VerbGroup,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Build skin image datasets, train ensembles on them, and serve a diagnosis page."
        "\n\n"
        "The steps: skindx build SOURCE --out DATA, then skindx train DATA --out RUN, "
        "then skindx evaluate RUN/bundle DATA, then skindx serve RUN/bundle. "
        "skindx new FOLDER prepares them for a folder of your images."
        "\n\n"
        "To run all steps on synthetic images: skindx demo. "
        "Without a verb, skindx says where a run stands and what comes next."
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        from skindx.core.measurement import commit

        known = commit()
        print(f"skindx {__version__}" + (f" (commit {known})" if known else ""))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        from skindx.start.standing import where_it_stands

        print("\n".join(where_it_stands(Path.cwd())))


JOBS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "First": {
        "new": new,
        "build": build,
        "train": train,
        "evaluate": evaluate,
        "diagnose": diagnose,
        "serve": serve,
    },
    "Build: images and labels": {
        "datasets": datasets,
        "audit": audit,
        "review": review,
        "publish": publish,
        "remove": remove,
        "leak": leak,
        "boxes": boxes.app,
        "dedup": dedup,
    },
    "Train: bundles and their figures": {
        "compare": compare,
        "recompute": recompute,
        "adapt": adapt,
        "export": export,
        "plan": plan,
        "features": features,
        "models": models,
        "bundle": bundle,
    },
    "Diagnose: photos and cases": {
        "monitor": monitor,
        "scan": scan.app,
        "casebook": casebook.app,
        "user": user,
    },
    "This machine": {"demo": demo, "doctor": doctor, "bench": bench, "completion": completion},
}
"""Panel of `skindx --help` -> its verbs and groups of verbs, the most used ones first."""

for panel, verbs in JOBS.items():
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(verb)
lay_out(app)
refuse_special_files(app)


def main() -> None:
    """Run the command line."""
    run_app(app, "skindx")


def run_app(commands: typer.Typer, package: str) -> None:
    """Run the commands of a package: offline, on a guarded terminal, errors in a sentence."""
    heed_interrupts()
    keep_folder_out(package)
    go_offline()
    collect_rarely()
    guard_terminal()
    print_deprecations()
    with one_sentence():
        commands()


if __name__ == "__main__":
    main()
