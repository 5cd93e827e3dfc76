"""`skindx screen`: screen a folder before a dataset is built from it."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from skindx.cli.options import Sets, console


def screen(
    folder: Annotated[Path, typer.Argument(help="A folder of images, at any depth.")],
    sets: Sets = None,
) -> None:
    """Report which images of a folder screening would refuse, and suggest a blur limit.

    It writes nothing. --set takes the keys of a recipe's `screen`.

    Example: skindx screen my/images --set min_side=128
    """
    from skindx.core.progress import progress_bars
    from skindx.data.screening.screen import ScreenSettings
    from skindx.data.screening.screen_report import print_report, report

    settings = ScreenSettings.load(None, sets or [])
    with progress_bars() as progress:
        result = report(folder, settings, on_progress=partial(progress, "screen"))
    print_report(result, settings, console())
