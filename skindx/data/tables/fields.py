"""How a table is read, which columns are wanted of it, and what became of its lines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.text import counted

AGAIN = "download this file again from where the dataset came from, and replace it"
LISTED = (
    "set `on_conflict: list` in the recipe, which leaves such images out and lists them in "
    "issues.parquet"
)
LEFT_OUT = "left out"
"""Key of a line whose image is not taken: (status, detail)."""


class TableFields(Settings):
    """How a table is read; every part of a recipe that names a table has these."""

    on_conflict: Literal["refuse", "list"] | None = Field(None, exclude_if=lambda one: one is None)
    """What contradicts itself or is missing: refuse the table, or leave it out and list it.

    null refuses contradictions (a column or a key twice with other values, a line that is longer
    or shorter than the header) and lists what is missing (a file in no line, a line without)."""
    header: tuple[str, ...] = Field((), exclude_if=lambda names: not names)
    """The names of all columns, for a table whose first line is data already."""
    sheet: str = Field("", exclude_if=lambda sheet: not sheet)
    """The sheet of a workbook; "": the only one that has the columns."""


@dataclass
class TableLog:
    """What became of a table that was read: its columns, its lines, and what was passed over."""

    names: tuple[str, ...] = ()
    """The columns as they are called afterwards."""
    lines: int = 0
    at: str = ""
    """Where the line stands that was read last."""
    dropped: list[tuple[str, str]] = field(default_factory=list)
    """Where a line stands that was left out, and why."""
    notes: list[str] = field(default_factory=list)
    of_others: list[str] = field(default_factory=list)
    """Whole sentences about tables that were joined."""

    def all_notes(self, path: Path) -> list[str]:
        """Return what was passed over, in sentences."""
        notes = [f"{path}: {note}" for note in self.notes]
        if self.dropped:
            where, why = self.dropped[0]
            count = counted(len(self.dropped), "line")
            notes.append(f"{path}: {count} left out, such as {where}: {why}.")
        return notes + self.of_others


class WantedColumns(Protocol):
    """Looks at the columns that a table has, and then says which are read."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The columns that are read if they are there."""

    @property
    def also(self) -> Mapping[str, tuple[str, ...]]:
        """Other names of a column."""

    def check(self, path: Path, existing: object) -> None:
        """Raise UserError for a table without a column that is needed."""


@dataclass(frozen=True)
class NeededColumns:
    """Columns that a table must have, whatever else it has."""

    wanted: tuple[str, ...] = ()
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def check(self, path: Path, existing: object) -> None:
        names = existing if isinstance(existing, list | tuple) else ()
        if set(self.wanted) - set(names):
            *first, last = self.wanted
            columns = f"{', '.join(first)} and {last}" if first else last
            raise UserError(
                f"{path} has missing columns; its first line must have the names {columns}."
            )


def check_sure(
    path: Path, counts: Mapping[str, Iterable[str]], what: str, fields: TableFields, effect: str
) -> dict[str, list[str]]:
    """Return the keys that say several things; `counts` are the values of each key.

    Raises UserError for the first of them, unless the recipe has them listed; the `effect`
    of that stands in the error.
    """
    torn = {key: sorted(set(values)) for key, values in counts.items()}
    torn = {key: values for key, values in torn.items() if len(values) > 1}
    if torn and fields.on_conflict != "list":
        key, values = next(iter(torn.items()))
        said = " and ".join(repr(value[:60]) for value in values[:2])
        raise UserError(
            f"{path} gives {counted(len(values), what)} for {key[:80]!r} ({said}); correct the "
            f"table, or set `on_conflict: list` for it in the recipe, which {effect}."
        )
    return torn
