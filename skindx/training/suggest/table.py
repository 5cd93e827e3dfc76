"""The learning curve of a suggestion as a table for a terminal."""

from typing import TYPE_CHECKING

from skindx.training.suggest.suggest import Suggestion

if TYPE_CHECKING:
    from rich.table import Table


def curve_table(own: Suggestion) -> "Table":
    """Return the linear probe's balanced accuracy over shares of the training groups."""
    from rich.table import Table

    table = Table(title=f"{own.model}, trunk {own.trunk}", box=None, title_justify="left")
    for heading in ("training groups", "images", "balanced accuracy"):
        table.add_column(heading, justify="right")
    for point in own.probe.curve:
        table.add_row(
            f"{point.share:.0%}", f"about {point.images}", f"{point.balanced_accuracy:.1%}"
        )
    return table
