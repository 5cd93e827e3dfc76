"""skindx publish: the copy of a dataset that may be given away."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from skindx.cli.options import Sets

Format = Literal["hub", "imagefolder", "webdataset", "fiftyone"]


def publish(
    dataset: Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Published folder to write.")],
    *,
    form: Annotated[
        Format, typer.Option("--format", help="hub: Parquet shards for `load_dataset`.")
    ] = "hub",
    contact: Annotated[
        str,
        typer.Option(help="Address for take-down requests; default: the recipe's fetch.contact."),
    ] = "",
    unaudited: Annotated[
        bool, typer.Option("--unaudited", help="Publish without `skindx audit`.")
    ] = False,
    sets: Sets = None,
) -> None:
    """Write a copy of a dataset that may be published, without metadata.

    The licence of each image decides. An image with an unknown or no-derivatives licence, or one
    flagged for a face, text or an intimate region, is only listed, with the reason. An earlier
    copy in OUT is replaced.

    Example: skindx publish runs/mine/data --out runs/mine/public --contact mail@example.org
    """
    from skindx.core.progress import progress_bars
    from skindx.data.publish.assemble import publish as publish_dataset
    from skindx.data.publish.publish_settings import PublishSettings

    start: dict[str, Any] = {"format": form, "contact": contact, "unaudited": unaudited}
    settings = PublishSettings.load(None, sets or [], start=start)
    with progress_bars() as progress:
        done = publish_dataset(dataset, out, settings, progress=partial(progress, "publish"))
    print(f"{done.folder}: {done.published} of {done.kept} images published.")
    for reason, count in done.withheld.items():
        print(f"  {count} withheld: {reason}")
    if done.reencoded:
        print(f"  {done.reencoded} coded once more: without metadata they would display wrongly.")
