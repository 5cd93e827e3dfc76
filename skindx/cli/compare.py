"""`skindx compare`: whether one predictor is better than another on the same images."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.cli.options import Part, console


def compare(
    first: Annotated[Path, typer.Argument(help="A: the folder of an evaluation, or a bundle.")],
    second: Annotated[Path, typer.Argument(help="B: the same.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; default: comparison/ beside A."),
    ] = None,
    *,
    dataset: Annotated[
        Path | None, typer.Option(help="Dataset to evaluate bundles on; not for evaluations.")
    ] = None,
    split: Annotated[
        Part, typer.Option(help="Split of --dataset; all for an external dataset.")
    ] = "test",
) -> None:
    """Compare two predictors on the same images, overall and by class, skin type and source.

    Differences are A minus B, with 95 % intervals by paired bootstrap over groups. McNemar's exact
    test uses the images that only one of the two classifies correctly. It writes comparison.json
    and comparison.html.

    Example: skindx compare runs/a/evaluation runs/b/evaluation --out runs/a-against-b

    Of bundles: skindx compare runs/a/bundle runs/b/bundle --dataset runs/mine/data
    """
    from skindx.core.progress import progress_bars
    from skindx.evaluation.predictor_comparison import PAGE, compare_folders, print_comparison

    folder = out or first.resolve().parent / "comparison"
    with progress_bars() as progress:
        comparison = compare_folders(
            first, second, folder, dataset=dataset, split=split, progress=progress
        )
    print_comparison(comparison, console())
    print(f"page: {folder / PAGE}")
