"""Columns that a recipe makes of several: the first that says something, the one set, or a text."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.data.placeholders import is_placeholder
from skindx.data.tables.cells import cell, number_of, truth

Combine = Mapping[str, str | tuple[str, ...] | Mapping[str, str]]
"""New column -> a list of columns, a map of columns to values, a pattern with one *, or a text with
columns in braces."""
_HOLE = re.compile(r"\{([^{}]+)\}")


@dataclass
class CombinedColumns:
    """The new columns of one table and of those that are joined to it."""

    combine: Combine
    _sets: dict[str, dict[str, str]] = field(default_factory=dict)
    """New column -> column of yes and no -> what it means that it is set."""
    _odd: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name, of in self.combine.items():
            if isinstance(of, Mapping):
                self._sets[name] = dict(of)
            elif isinstance(of, str) and not _HOLE.search(of):
                if of.count("*") != 1:
                    raise UserError(
                        f"combine.{name} is {of!r}, which has the wrong form; give a list, a map, "
                        "a pattern with one *, or a pattern with one {column}."
                    )
                self._sets[name] = {}

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that the recipe names whole."""
        parts = (_HOLE.findall(of) if isinstance(of, str) else of for of in self.combine.values())
        return tuple(column for columns in parts for column in columns)

    @property
    def matched(self) -> tuple[str, ...]:
        """The columns that patterns stand for, as far as tables were opened."""
        return tuple(column for name, of in self._patterns() for column in self._sets[name])

    def _patterns(self) -> Iterator[tuple[str, str]]:
        strings = ((name, of) for name, of in self.combine.items() if isinstance(of, str))
        return ((name, of) for name, of in strings if not _HOLE.search(of))

    def match(self, existing: Iterable[str]) -> None:
        """Take the columns of a table that a pattern means."""
        names = list(existing)
        for name, of in self._patterns():
            before, _, after = of.partition("*")
            pattern = re.compile(f"{re.escape(before)}(.+){re.escape(after)}", re.DOTALL)
            found = {column: match[1] for column in names if (match := pattern.fullmatch(column))}
            self._sets[name] |= found

    def check(self, path: Path, existing: Iterable[str]) -> None:
        """Raise UserError for a pattern that no column meets."""
        self.match(existing)
        for name, of in self._patterns():
            if not self._sets[name]:
                raise UserError(
                    f"{path} has no column like {of!r}; change `combine.{name}` in the recipe."
                )

    def fill(self, line: dict[str, Any]) -> None:
        """Give a line its new columns; several that are set, and what is odd, say nothing."""
        for name, of in self.combine.items():
            if isinstance(of, str) and name not in self._sets:
                cells = {column: cell(line.get(column)) for column in _HOLE.findall(of)}
                whole = not any(map(is_placeholder, cells.values()))
                line[name] = _HOLE.sub(lambda hole: cells[hole[1]], of) if whole else ""  # noqa: B023
                continue
            if not isinstance(of, str | Mapping):
                texts = (cell(line.get(column)) for column in of)
                line[name] = next((text for text in texts if not is_placeholder(text)), "")
                continue
            said = {column: _is_set(line.get(column)) for column in self._sets[name]}
            values = {self._sets[name][column] for column, is_set in said.items() if is_set}
            if None in said.values():
                self._odd[name, "with a cell that is neither yes nor no"] += 1
            elif len(values) > 1:
                self._odd[name, "of several"] += 1
            line[name] = values.pop() if len(values) == 1 and None not in said.values() else ""

    def notes(self) -> list[str]:
        """Return what could not be decided, in sentences."""
        return [
            f"{counted(count, 'line')} {what} for {name!r}, which is unknown there."
            for (name, what), count in self._odd.items()
        ]


def _is_set(value: object) -> bool | None:
    """Tell whether a column of yes and no is set; None for what is neither."""
    text = cell(value)
    if is_placeholder(text):
        return False
    number = number_of(text)
    return truth(text) if number is None else number > 0
