"""`skindx annotate`."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.core.errors import UserError


def annotate(
    dataset: Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")],
    *,
    bundle: Annotated[
        Path | None,
        typer.Option(help="First let this bundle propose boxes for images without annotations."),
    ] = None,
    copies: Annotated[
        bool,
        typer.Option("--copies", help="Instead of boxes, decide which pairs of images are copies."),
    ] = False,
    skin: Annotated[
        bool,
        typer.Option("--skin", help="Instead of boxes, decide which flagged images show skin."),
    ] = False,
    by: Annotated[str, typer.Option(help="Name of the reviewer; default: your login name.")] = "",
    port: Annotated[int, typer.Option(help="Port; only this machine can reach it.")] = 7861,
) -> None:
    """Open a page to draw lesion boxes, or to review possible copies or flagged images.

    The most uncertain come first: boxes of low confidence, uncertain pairs (--copies), and images
    that may show no skin (--skin). The next build follows the answers.

    A saved image changes the manifest at once; annotations.parquet keeps the boxes of each
    reviewer. Only one reviewer can work on a dataset at a time; to combine several, use
    `skindx boxes export` and `skindx boxes import`.

    Example: skindx annotate runs/mine/data --bundle runs/mine/bundle --by "Dr. Mole"
    """
    import getpass

    from skindx.ui.annotator.annotator_server import serve, serve_copies, serve_skin

    if copies and skin:
        raise UserError("--copies and --skin are two pages; give one of them.")
    if copies or skin:
        if bundle is not None:
            named = "--copies" if copies else "--skin"
            raise UserError(f"--bundle proposes boxes; leave it out with {named}.")
        answer = serve_copies if copies else serve_skin
        answer(dataset, by or getpass.getuser(), port=port)
        return
    if bundle is not None:
        _propose(dataset, bundle)
    serve(dataset, by or getpass.getuser(), port=port)


def _propose(dataset: Path, bundle: Path) -> None:
    from functools import partial

    from skindx.core.progress import progress_bars
    from skindx.review.box_proposals import propose
    from skindx.review.box_review import unseen

    if not unseen(dataset):
        return
    with progress_bars() as progress:
        done = propose(dataset, bundle, progress=partial(progress, "propose"))
    print(f"{done.model}: {done.boxes} boxes in {done.images} images.")
