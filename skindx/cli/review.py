"""`skindx review`, and `skindx annotate`, its older name."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from skindx.core.errors import UserError

ReasonName = Literal[
    "face", "text", "intimate", "label", "not-skin", "off-topic", "quality", "copy", "box"
]

Dataset = Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")]
Port = Annotated[int, typer.Option(help="Port; only this machine can reach it.")]


def review(
    dataset: Dataset,
    *,
    by: Annotated[
        str, typer.Option(help="Name of the reviewer; default: the page asks for it once.")
    ] = "",
    reason: Annotated[
        ReasonName | None, typer.Option(help="Begin with what is there for this reason.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write all answers to this CSV file instead.")
    ] = None,
    port: Port = 7861,
) -> None:
    """Open one page to decide what programs flagged: images, labels, copies and boxes.

    It shows flags of `skindx audit` and of the build, doubtful labels, pairs that may be copies
    and boxes that a model proposes. The keys keep, withhold, remove or relabel an image, call two
    images the same or different and a box right or wrong; `?` lists them. Answers are rows of
    DATASET/decisions.csv, which the next build follows; several people may review at once.

    Example: skindx review runs/mine/data --by "Dr. Mole"
    """
    if export is None:
        _open(dataset, by, reason or "", port)
        return
    from skindx.core.atomic_files import write_csv
    from skindx.review.dataset_review import EXPORTED, exported

    if export.is_dir() or export.resolve().parent == dataset.resolve():
        raise UserError(
            f"--export {export} is a folder or lies in the dataset; name a CSV file elsewhere."
        )
    rows = list(exported(dataset))
    write_csv(export, EXPORTED, rows)
    print(f"{export}: {len(rows)} answers.")


def annotate(
    dataset: Dataset,
    *,
    bundle: Annotated[
        Path | None,
        typer.Option(help="First let this bundle propose boxes for images without annotations."),
    ] = None,
    copies: Annotated[
        bool, typer.Option("--copies", help="Begin with pairs of images that may be copies.")
    ] = False,
    skin: Annotated[
        bool, typer.Option("--skin", help="Begin with images that may show no skin.")
    ] = False,
    by: Annotated[str, typer.Option(help="Name of the reviewer; default: your login name.")] = "",
    port: Port = 7861,
) -> None:
    """Open the page of `skindx review` at boxes, possible copies or images without skin.

    Example: skindx annotate runs/mine/data --bundle runs/mine/bundle --by "Dr. Mole"
    """
    import getpass

    if copies and skin:
        raise UserError("--copies and --skin are two views; give one of them.")
    if bundle is not None and (copies or skin):
        named = "--copies" if copies else "--skin"
        raise UserError(f"--bundle proposes boxes; leave it out with {named}.")
    if bundle is not None:
        _propose(dataset, bundle)
    reason = "copy" if copies else "not-skin" if skin else "box"
    _open(dataset, by or getpass.getuser(), reason, port)


def _open(dataset: Path, by: str, reason: str, port: int) -> None:
    from skindx.ui.review.review_server import serve

    serve(dataset, by, reason=reason, port=port)


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
