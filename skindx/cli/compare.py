"""`skindx compare` of two predictors on the same images, and `skindx leak` of two datasets."""

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


def leak(
    first: Annotated[Path, typer.Argument(help="A: a dataset folder, or a bundle.")],
    second: Annotated[Path, typer.Argument(help="B: the same.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the certificate.")],
    *,
    fail: Annotated[
        bool, typer.Option("--fail", help="End with exit code 1 if there are copies.")
    ] = False,
) -> None:
    """Certify which images of A are copies of images of B: same file, same pixels, or near copy.

    Near copies are other encodings, sizes and turns, crops, and second photos that show the same.
    A bundle has fingerprints of the images that it was made from. It writes leak.json, leak.html
    and pairs.csv, with a bound for links by chance and a list of what could not be compared.

    Example: skindx leak runs/mine/bundle other/data --out runs/mine/leak
    """
    from skindx.core.progress import progress_bars
    from skindx.evaluation.leak import PAGE, verdict
    from skindx.evaluation.leak import leak as compare

    with progress_bars() as progress:
        certificate = compare(first, second, out, progress=progress)
    for count in certificate.counts:
        if count.pairs:
            print(f"{count.kind}: {count.pairs} pairs")
    print("\n".join([*certificate.not_compared, verdict(certificate)]))
    print(f"page: {out / PAGE}")
    if fail and certificate.copied_a:
        raise typer.Exit(1)
