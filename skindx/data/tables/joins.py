"""A second table, joined by its key: what it adds to a line, and where the two disagree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.data.placeholders import is_placeholder
from skindx.data.tables.cells import as_matched, cell, same_value
from skindx.data.tables.combined import CombinedColumns
from skindx.data.tables.fields import LEFT_OUT, LISTED, TableFields, TableLog
from skindx.data.tables.reader import read_table


class JoinedTable(TableFields):
    """A second table, whose line with the same key says more of an image."""

    path: Path
    key: str = Field(min_length=1)
    """The column of the first table, or of one joined before."""
    to: str = ""
    """The column of this table; "": of the same name."""


@dataclass(frozen=True)
class _OfJoined:
    """The columns of a joined table: its key, and whatever the recipe names."""

    key: str
    names: tuple[str, ...]
    combined: CombinedColumns
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[str, ...]:
        names = dict.fromkeys((*self.names, *self.combined.matched))
        return (self.key, *(name for name in names if name != self.key))

    def check(self, path: Path, existing: object) -> None:
        names = [str(name) for name in existing] if isinstance(existing, list | tuple) else []
        if self.key not in names:
            raise UserError(
                f"{path} has no column {self.key!r}; set `join` in the recipe to one of its "
                f"columns: {', '.join(names)}."
            )
        self.combined.match(names)
        if not set(self.wanted) - {self.key} & set(names):
            raise UserError(
                f"{path} has none of the columns that the recipe names ({', '.join(self.names)}) "
                f"but has {', '.join(names)}; change `columns` in the recipe, or remove the table "
                "from `join`."
            )


class Join:
    """A joined table by its keys."""

    def __init__(
        self,
        table: JoinedTable,
        names: Sequence[str],
        shape: TableFields,
        combined: CombinedColumns,
    ) -> None:
        policy = table.on_conflict or shape.on_conflict
        self.table = table.model_copy(update={"on_conflict": policy})
        self.key = table.to or table.key
        self.log = TableLog()
        self.torn: dict[str, str] = {}
        """Keys with two lines that say different things, and what."""
        self.lines: dict[str, dict[str, Any]] = {}
        self.examples: list[str] = []
        self._used: set[str] = set()
        self._lone = 0
        columns = _OfJoined(self.key, tuple(names), combined)
        for line in read_table(table.path, columns, self.table, self.log):
            self._add(line)
        names = (*names, *combined.matched)
        self.columns = tuple(name for name in self.log.names if name in names and name != self.key)

    def _add(self, line: dict[str, Any]) -> None:
        text = cell(line.pop(self.key, None))
        if is_placeholder(text):
            return
        self.examples += [text] if len(self.examples) < 2 else []
        key = as_matched(text)
        before = self.lines.setdefault(key, line)
        for name, value in line.items():
            if is_placeholder(cell(before.get(name))):
                before[name] = value
            elif not is_placeholder(cell(value)) and not same_value(before[name], value):
                said = f"{name}: {cell(before[name])[:60]!r} and {cell(value)[:60]!r}"
                if self.table.on_conflict != "list":
                    raise UserError(
                        f"{self.table.path} has {text[:60]!r} twice in its column {self.key!r} "
                        f"with different values ({said}); correct that table, or {LISTED}."
                    )
                self.torn[key] = f"{self.table.path.name} says {said}"

    def into(self, line: dict[str, Any]) -> None:
        """Add what this table says to a line; a contradiction leaves the line out."""
        key = as_matched(line.get(self.table.key))
        found = self.lines.get(key)
        if found is None:
            self._lone += 1
            return
        self._used.add(key)
        if key in self.torn:
            line.setdefault(LEFT_OUT, ("conflict", self.torn[key]))
            return
        for name, value in found.items():
            if is_placeholder(cell(line.get(name))):
                line[name] = value
            elif not is_placeholder(cell(value)) and not same_value(line[name], value):
                one, other = cell(line[name])[:60], cell(value)[:60]
                said = f"{self.table.path.name} says {name} {other!r}, and the line {one!r}"
                if self.table.on_conflict != "list":
                    raise UserError(
                        f"two tables have different values for {key[:60]!r} ({said}); correct one "
                        f"of the tables, or {LISTED}."
                    )
                line.setdefault(LEFT_OUT, ("conflict", said))

    def notes(self, path: Path, example: str) -> list[str]:
        """Return what did not meet, in sentences. Raises UserError where nothing did."""
        notes = self.log.all_notes(self.table.path)
        if self._lone and not self._used:
            there = self.examples[0] if self.examples else ""
            raise UserError(
                f"no value of the column {self.table.key!r} in {path} (such as {example[:60]!r}) "
                f"is in the column {self.key!r} of {self.table.path} (such as {there[:60]!r}); "
                "change `key` or `to` of this `join` in the recipe."
            )
        if self._lone:
            notes.append(
                f"{path}: {counted(self._lone, 'line')} without a line in {self.table.path}."
            )
        if left := len(self.lines) - len(self._used):
            notes.append(f"{self.table.path}: {counted(left, 'line')} of no line in {path}.")
        return notes
