"""The command line: few verbs, few flags; every heavy import stands inside its verb."""

import errno
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from skindx import __version__
from skindx.bench import BENCHES
from skindx.cli import boxes, casebook
from skindx.cli.annotate import annotate
from skindx.cli.audit import audit
from skindx.cli.compare import compare
from skindx.cli.dedup import dedup
from skindx.cli.diagnose import diagnose
from skindx.cli.evaluate import evaluate
from skindx.cli.export import export
from skindx.cli.gallery import gallery
from skindx.cli.help_text import lay_out
from skindx.cli.options import Sets
from skindx.cli.publish import publish
from skindx.cli.remove import remove
from skindx.cli.screen import screen
from skindx.cli.serve import serve, user
from skindx.cli.train import train
from skindx.errors import JobError, UserError
from skindx.full_disk import no_room
from skindx.system import go_offline
from skindx.text import printable

app = typer.Typer(
    name="skindx",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Pictures of skin become a dataset, a dataset an ensemble, an ensemble a diagnosis "
        "page.\n\n"
        "The way through: skindx build SOURCE --out DATA, then skindx train DATA --out RUN, "
        "then skindx evaluate RUN/bundle DATA, then skindx serve RUN/bundle.\n\n"
        "To see all of it at once on painted pictures: skindx demo."
    ),
)


app.add_typer(boxes.app, name="boxes")
app.add_typer(casebook.app, name="casebook")
app.add_typer(user, name="user")


def _version(wanted: bool) -> None:
    if wanted:
        from skindx.provenance import commit

        known = commit()
        print(f"skindx {__version__}" + (f" (commit {known})" if known else ""))
        raise typer.Exit


app.add_typer(dedup)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def build(
    out: Annotated[Path, typer.Option("--out", "-o", help="Dataset folder to write.")],
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A recipe (YAML), or a folder that holds one folder a class. May be left out "
            "with --diff, to compare only."
        ),
    ] = None,
    *,
    taxonomy: Annotated[
        str | None,
        typer.Option(help="skin10, skin100, isic9 or a YAML file; default: the recipe's."),
    ] = None,
    freeze: Annotated[
        Path | None,
        typer.Option(help="Dataset or splits.csv whose pictures keep their split here too."),
    ] = None,
    resplit: Annotated[
        bool, typer.Option("--resplit", help="Split anew; old results are then not comparable.")
    ] = False,
    diff: Annotated[
        Path | None,
        typer.Option(help="Older version: say what changed since, also in OUT/diff.json."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Share the work with a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.",
        ),
    ] = None,
    sets: Sets = None,
) -> None:
    """Turn pictures into a dataset: acquire, screen, de-duplicate, split.

    Every picture that does not enter it is listed in OUT/issues.parquet with its reason. A build
    that was stopped goes on where it was: run the same command again. Built again, a dataset
    keeps every picture's split, and what `skindx remove` took down stays out.

    Example: skindx build my/pictures --out runs/mine/data

    On a cluster whose machines all see OUT: skindx build recipe.yaml --out OUT --cluster auto
    """
    from skindx.cli.build import run_build

    run_build(
        source,
        out,
        taxonomy=taxonomy,
        freeze=freeze,
        resplit=resplit,
        older=diff,
        cluster=cluster,
        sets=sets or [],
    )


for verb in (
    screen,
    annotate,
    gallery,
    audit,
    publish,
    remove,
    train,
    evaluate,
    compare,
    export,
    diagnose,
    serve,
):
    app.command()(verb)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Only see that it runs here; too small to measure.")
    ] = False,
    sets: Sets = None,
) -> None:
    """Measure, and print a table with hardware, versions, n and spread.

    What --set can change, a wrong key lists: skindx bench dedup --set help=1

    Example: skindx bench dedup --json dedup.json
    """
    from skindx.bench import run_bench

    run_bench(name, json_file, sets or [], smallest=smallest)


@app.command()
def doctor(
    prebuild: Annotated[
        bool, typer.Option(help="Compile DeepSpeed's operator now instead of at the first start.")
    ] = True,
) -> None:
    """Check compiler, headers, accelerator, extras and disk; say what to do about each."""
    from skindx.doctor import examine, render

    findings = examine(build=prebuild)
    print(render(findings))
    if any(finding.required and not finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to work in.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the painted pictures.")] = 0,
) -> None:
    """Show the whole way on painted pictures: scrape, build, train, evaluate, diagnose."""
    from skindx.demo import run_demo

    run_demo(out, seed)


lay_out(app)

_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What a user can mend: a folder of others, a disk that is full or read alone, a limit of size."""


def _file_above(error: OSError) -> Path | None:
    """Return the file that stands where an error misses a folder, None for all other errors."""
    if error.errno not in (errno.ENOTDIR, errno.EEXIST) or error.filename is None:
        return None
    where = Path(os.fsdecode(error.filename))
    return next((each for each in (where, *where.parents) if each.is_file()), None)


def main() -> None:
    """Run the command line: a user's mistake ends with one sentence and exit code 2."""
    go_offline()
    try:
        app()
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except JobError as error:
        # Several lines: it may end with those of the process that failed.
        lines = f"error: {error}".splitlines()
        print("\n".join(printable(line) for line in lines), file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if file := _file_above(error):
            print(f"error: {file} is a file, and a folder is needed there.", file=sys.stderr)
            sys.exit(2)
        if no_room(error) and error.filename is None:  # as every write says it
            print(f"error: {error.strerror}; make room and run the command again.", file=sys.stderr)
            sys.exit(2)
        if error.errno not in _REFUSED or error.filename is None:
            raise
        where = re.sub(r"\.tmp-\w+$", "", str(error.filename))  # we wrote under another name
        advice = (
            "make room and run the command again"
            if no_room(error)
            else "look at its permissions and the room on its disk"
        )
        print(f"error: {where}: {error.strerror}; {advice}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
