"""`skindx bench`."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.bench import BENCHES, COMPARE
from skindx.cli.options import Sets


def bench(  # noqa: PLR0917
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}; or {COMPARE}.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="For compare: JSON files that benches wrote, of two machines or more."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Also write a page, of all, devices or compare."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="For all: at most ten minutes on two cores.")
    ] = False,
    fit: Annotated[
        bool, typer.Option("--fit", help="For gemm: let skindx multiply by what it learns.")
    ] = False,
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
    from skindx.bench import compare_results, run_bench

    if name == COMPARE:
        compare_results(
            files or [], html, others=bool(json_file or quick or fit or smallest or sets)
        )
        return
    run_bench(
        name,
        json_file,
        sets or [],
        smallest=smallest,
        quick=quick,
        fit=fit,
        html=html,
        files=files or [],
    )
