"""How benches write what they found: tables for a terminal and for Markdown, plots, intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.atomic_files import atomic_file
from skindx_bench.harness.clock import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from rich.table import Table


def bracketed(figure: Figure, form: str = ".1f") -> str:
    """Return a figure with its spread, without the unit: 400.0 [350.0, 450.0]."""
    low, high = figure.spread
    return f"{figure.value:{form}} [{low:{form}}, {high:{form}}]"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; every row has a cell for each heading."""
    assert all(len(row) == len(headings) for row in rows)
    head, *lines = (f"| {' | '.join(line)} |\n" for line in (headings, *rows))
    return "".join((head, "|---" * len(headings) + "|\n", *lines))


def terminal_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, no_wrap: bool = False
) -> "Table":
    """Return a table for a terminal: the first column is a name, the others are numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=no_wrap)
    for row in rows:
        table.add_row(*row)
    return table


def new_plot(width: float, height: float) -> "Plot":
    """Return an empty matplotlib figure of so many inches; no window is opened for it."""
    from matplotlib.figure import Figure as Plot

    return Plot(figsize=(width, height), layout="constrained")


def write_plot(path: Path, plot: "Plot", dpi: int = 150) -> None:
    """Write a PNG atomically."""
    with atomic_file(path) as temporary:
        plot.savefig(temporary, format="png", dpi=dpi)
