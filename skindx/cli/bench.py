"""`skindx bench`."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.bench import BENCHES
from skindx.cli.options import Sets


def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
    smallest: Annotated[
        bool,
        typer.Option(
            "--smallest", help="Only check that the bench runs; its figures mean nothing."
        ),
    ] = False,
    sets: Sets = None,
) -> None:
    """Measure, and print a table with hardware, versions, n and spread.

    To list the keys of --set, give a wrong one: skindx bench dedup --set help=1

    Example: skindx bench dedup --json dedup.json
    """
    from skindx.bench import run_bench

    run_bench(name, json_file, sets or [], smallest=smallest)
