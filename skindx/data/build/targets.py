"""What each source gave of each class, against the number of pictures that a recipe aims at."""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skindx.data.dedup.select import Distinct
from skindx.data.manifest import Record
from skindx.errors import UserError
from skindx.taxonomy import Taxonomy
from skindx.text import cell, printable

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class ClassCount:
    """One class: the aim, and by source the sound pictures found and those kept of them."""

    label: str
    target: int | None
    found: Mapping[str, int]
    kept: Mapping[str, int]

    @property
    def all_kept(self) -> int:
        """Kept pictures of all sources."""
        return sum(self.kept.values())

    @property
    def missing(self) -> int:
        """Pictures still missing to the aim; 0 where there is none."""
        return max(0, (self.target or 0) - self.all_kept)


def check_targets(targets: Mapping[str, int], taxonomy: Taxonomy) -> None:
    """Raise UserError for a target of what is no class: nothing would ever be counted for it."""
    for label in sorted(set(targets) - set(taxonomy.keys)):
        match = taxonomy.find(label)
        near = [match.key] if match else difflib.get_close_matches(label, taxonomy.keys, cutoff=0.3)
        hint = f"; write {near[0]!r}" if match else f" (nearest: {', '.join(near)})" if near else ""
        raise UserError(f"targets names {label!r}, which is no class of {taxonomy.name}{hint}.")


def count_by_source(
    keys: Sequence[str], pictures: Distinct, records: Sequence[Record], targets: Mapping[str, int]
) -> list[ClassCount]:
    """Count the classes `keys` in their order; a picture that two sources gave counts for both."""
    found = Counter((each.label, each.row.source) for same in pictures for each in same)
    kept = Counter((record.label, record.source) for record in records)
    return [
        ClassCount(
            key,
            targets.get(key),
            {source: n for (label, source), n in sorted(found.items()) if label == key},
            {source: n for (label, source), n in sorted(kept.items()) if label == key},
        )
        for key in keys
    ]


def print_counts(counts: Sequence[ClassCount], console: "Console") -> None:
    """Print each class's kept pictures by source, the aim, and how much of it is reached.

    Sources are columns by number: their names may be long and begin alike.
    """
    from rich.table import Table

    sources = _sources(counts)
    numbers = [str(number) for number in range(1, len(sources) + 1)]
    table = Table("class", "target", "kept", "reached", *numbers)
    for column in table.columns[1:]:
        column.justify = "right"
    for each in counts:
        table.add_row(
            cell(each.label),
            *_against(each.target, each.all_kept),
            *(str(each.kept.get(source, 0)) for source in sources),
        )
    table.add_section()
    target = sum(each.target or 0 for each in counts)
    totals = [sum(each.kept.get(source, 0) for each in counts) for source in sources]
    table.add_row("all", *_against(target, sum(totals)), *map(str, totals))
    console.print(table)
    for number, source in zip(numbers, sources, strict=True):
        console.print(f"source {number}: {printable(source)}", markup=False, highlight=False)


def _against(target: int | None, kept: int) -> tuple[str, str, str]:
    return str(target or "–"), str(kept), f"{kept / target:.0%}" if target else "–"


def _sources(counts: Sequence[ClassCount]) -> list[str]:
    return sorted({source for each in counts for source in each.found})
