"""A comparison as one HTML page, and as tables in the terminal."""

import math
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.atomic_files import write_text
from skindx.evaluation.compare.compare import ComparedPart, Comparison
from skindx.evaluation.formatting import (
    bounds,
    figures_of,
    p_equation,
    p_value,
    percent,
    points,
    shown,
    shown_difference,
    title,
)
from skindx.evaluation.report.pages import render

if TYPE_CHECKING:
    from rich.console import Console


def write_page(path: Path, comparison: Comparison) -> None:
    """Write the comparison as one self-contained HTML file."""
    write_text(path, render_page(comparison))


def render_page(comparison: Comparison) -> str:
    """Return the page as HTML that is well-formed XML too; every value is escaped."""
    return render(
        "comparison.html.jinja",
        c=comparison,
        parts=_by_attribute(comparison),
        verdict=verdict(comparison),
    )


def verdict(comparison: Comparison) -> str:
    """Return in a sentence whether the two differ in balanced accuracy."""
    difference = next(
        figure.difference for figure in comparison.figures if figure.key == "balanced_accuracy"
    )
    sentence = f"In balanced accuracy A − B is {shown_difference(difference, 'balanced_accuracy')}"
    if math.isnan(difference.low):
        return f"{sentence}: with a single group nothing bounds it."
    if difference.low > 0:
        return f"{sentence}: A is better on these images."
    if difference.high < 0:
        return f"{sentence}: B is better on these images."
    return f"{sentence}: the interval holds 0, so these images cannot tell them apart."


def print_comparison(comparison: Comparison, console: "Console") -> None:
    """Print the headline figures of both, their differences, and the parts."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    size = f"{comparison.pictures} images, {comparison.groups} groups"
    heading = f"{size}; {100 * comparison.level:.0f} % intervals of A − B"
    table = Table("", title=heading, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("A", "B", "A − B"):
        table.add_column(name, justify="right", no_wrap=True)
    printed = figures_of(comparison.k)
    for figure in (figure for figure in comparison.figures if figure.key in printed):
        ours, theirs = shown(figure.first, figure.key), shown(figure.second, figure.key)
        table.add_row(
            title(figure.key, comparison.k),
            ours,
            theirs,
            shown_difference(figure.difference, figure.key),
        )
    console.print(f"A: {escape(comparison.first)}\nB: {escape(comparison.second)}", highlight=False)
    console.print(table)
    parts = Table("", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("n", "A finds", "B finds", "A − B, points", "only A : only B", "p"):
        parts.add_column(name, justify="right", no_wrap=True)
    for attribute, rows in _by_attribute(comparison).items():
        parts.add_row(f"[bold]{escape(attribute)}[/bold]")
        for row in rows:
            parts.add_row(
                f"  {escape(row.value)}",
                str(row.n),
                percent(row.first),
                percent(row.second),
                f"{points(row.difference.value)} {bounds(row.difference, 'points')}",
                f"{row.test.only_first} : {row.test.only_second}",
                p_value(row.test.p),
            )
    console.print(parts)
    test = comparison.test
    console.print(
        f"{verdict(comparison)}\nOnly A is right on {test.only_first} images, only B on "
        f"{test.only_second}: McNemar's exact {p_equation(test.p)}, which takes every image "
        "for independent.",
        highlight=False,
    )


def _by_attribute(comparison: Comparison) -> dict[str, list[ComparedPart]]:
    return {
        attribute: list(parts)
        for attribute, parts in groupby(comparison.parts, key=lambda part: part.attribute)
    }
