"""How many images each source gave of each class, beside the number that a recipe aims at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skindx.core.text import cell, printable

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class ClassCount:
    """One class: the aim, and by source the sound images found and those kept of them."""

    label: str
    target: int | None
    found: Mapping[str, int]
    kept: Mapping[str, int]

    @property
    def all_kept(self) -> int:
        """Kept images of all sources."""
        return sum(self.kept.values())

    @property
    def missing(self) -> int:
        """Images still missing to the aim; 0 where there is none."""
        return max(0, (self.target or 0) - self.all_kept)


def print_counts(counts: Sequence[ClassCount], console: "Console") -> None:
    """Print each class's kept images by source, the aim, and how much of it is reached.

    Sources are columns by number: their names may be long and begin alike.
    """
    from rich.table import Table

    sources = _sources(counts)
    numbers = [str(number) for number in range(1, len(sources) + 1)]
    table = Table("class", "target", "kept", "reached", *numbers)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in counts:
        table.add_row(
            cell(row.label),
            *_against(row.target, row.all_kept),
            *(str(row.kept.get(source, 0)) for source in sources),
        )
    table.add_section()
    target = sum(row.target or 0 for row in counts)
    totals = [sum(row.kept.get(source, 0) for row in counts) for source in sources]
    table.add_row("all", *_against(target, sum(totals)), *map(str, totals))
    console.print(table)
    for number, source in zip(numbers, sources, strict=True):
        console.print(f"source {number}: {printable(source)}", markup=False, highlight=False)


def _against(target: int | None, kept: int) -> tuple[str, str, str]:
    return str(target or "–"), str(kept), f"{kept / target:.0%}" if target else "–"


def _sources(counts: Sequence[ClassCount]) -> list[str]:
    return sorted({source for row in counts for source in row.found})
