"""`skindx build`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from skindx.cli.options import Sets, console
from skindx.core.errors import UserError


def build(
    source: Annotated[
        Path, typer.Argument(help="A recipe (YAML), or a folder with one subfolder for each class.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Dataset folder to write.")],
    taxonomy: Annotated[
        str | None,
        typer.Option(help="skin10, skin100, isic9, ham10000, fitzpatrick16 or a YAML file."),
    ] = None,
    urgency: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=TIER", help="urgent, soon or routine; repeatable."),
    ] = None,
    freeze: Annotated[
        Path | None,
        typer.Option(help="Dataset or splits.csv whose images keep their split here too."),
    ] = None,
    resplit: Annotated[
        bool, typer.Option("--resplit", help="Split again; old results are then not comparable.")
    ] = False,
    join_copies: Annotated[
        bool,
        typer.Option(
            "--join-copies", help="Join copies of different splits: keep those nearest to train."
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
    ] = None,
    sets: Sets = None,
) -> None:
    """Build a dataset from images: fetch, screen, de-duplicate, split.

    OUT/issues.parquet lists every image that was left out, with the reason. To resume an
    interrupted build, run the same command again. A rebuilt dataset keeps the split of every
    image, and images that `skindx remove` took down stay out.

    Example: skindx build my/images --out runs/mine/data

    On a cluster whose machines share OUT: skindx build recipe.yaml --out OUT --cluster auto
    """
    from skindx.core.progress import progress_bars
    from skindx.core.text import printable
    from skindx.data.build.build_dataset import build, load_build_settings
    from skindx.data.layout import REPORT
    from skindx.data.summary import print_summary

    if freeze:
        sets = [*(sets or []), f"split.frozen={json.dumps(str(freeze))}"]
    settings = load_build_settings(source, sets or [], taxonomy, urgency or [])
    if settings.split.frozen and resplit:
        raise UserError(
            "--resplit cannot change the splits, because `split.frozen` keeps those of "
            f"{settings.split.frozen}; remove --resplit, or add --set split.frozen=null."
        )
    with progress_bars() as progress:
        summary = build(
            settings,
            out,
            resplit=resplit,
            join_copies=join_copies,
            progress=progress,
            cluster=cluster,
        )
    print_summary(summary, console(), out)
    print(printable(f"{out / REPORT} shows this with examples, in a browser or on paper."))
