"""`skindx review`: one page to decide what programs flagged."""

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
        from skindx.ui.review.review_server import serve

        serve(dataset, by, reason=reason or "", port=port)
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
