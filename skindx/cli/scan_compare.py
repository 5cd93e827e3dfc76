"""`skindx scan compare`: what changed from one scan of a person to the next."""

from pathlib import Path
from typing import Annotated

import typer


def compare(
    before: Annotated[Path, typer.Argument(help="A folder that `skindx scan run` wrote.")],
    after: Annotated[Path, typer.Argument(help="The same, of a later scan of the same person.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder to write; default: comparison/ inside AFTER's parent."
        ),
    ] = None,
) -> None:
    """List lesions that are new, grown, changed or vanished between two scans of a person.

    Photos of the same view are aligned by points of the skin, or by the lesions where the skin
    shows none; photos that do not fit are refused. Growth has a 95 % interval. It writes
    comparison.html and changes.csv. It is a search for what to look at, no diagnosis.

    Example: skindx scan compare runs/back-2025 runs/back-2026 --out runs/back-compared
    """
    from skindx.core.text import printable
    from skindx.scan.compare.comparison import compare as compare_scans
    from skindx.scan.compare.page import PAGE, headline, write_comparison

    folder = out or after.resolve().parent / "comparison"
    comparison = compare_scans(before, after)
    write_comparison(folder, comparison)
    print(f"{headline(comparison)}.")
    for name in comparison.alone:
        print(printable(f"{name} fits no photo of {before}; its lesions were not compared."))
    print(f"page: {folder / PAGE}")


def add_compare(group: typer.Typer) -> None:
    """Add the verb to `skindx scan`."""
    group.command("compare")(compare)
