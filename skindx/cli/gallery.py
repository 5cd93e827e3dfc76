"""`skindx gallery`: browse a dataset."""

from pathlib import Path
from typing import Annotated

import typer


def gallery(
    dataset: Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write; default: DATASET/gallery.")
    ] = None,
) -> None:
    """Write pages with the images that were kept, dropped or flagged, and the reasons.

    The pages are static HTML without scripts and load nothing from the network. They show private
    images: do not publish them.

    Example: skindx gallery runs/mine/data
    """
    from skindx.core.progress import progress_bars
    from skindx.data.publish.gallery_pages import write_gallery

    with progress_bars() as progress:
        index = write_gallery(dataset, out or dataset / "gallery", progress=progress)
    print(f"open {index.resolve().as_uri()}")
