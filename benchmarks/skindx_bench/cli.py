"""`skindx bench`: the verb that this distribution adds to the command line of skindx."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.cli.options import Sets
from skindx_bench import BENCHES, COMPARE, compare_results, run_bench

app = typer.Typer(
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)


@app.command()
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


def main() -> None:
    """Run the lab alone: `python -m skindx_bench`, also from a path where it is not installed."""
    from skindx.cli import run_app
    from skindx.cli.options import lay_out
    from skindx.cli.special_files import refuse_special_files

    lay_out(app)
    refuse_special_files(app)
    run_app(app)
