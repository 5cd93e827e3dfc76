"""The pieces that make lines of images out of the tables that people have.

A second table joined by key, a column for each class (one-hot), levels of a hierarchy, a map of
labels or of any column's values, several images a row, a filter. What a piece cannot decide is left
out of the dataset with its reason, never guessed.
"""

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.text import counted, folded_name
from skindx.data.origin import Modality
from skindx.data.placeholders import is_placeholder
from skindx.data.tables.cells import LONGEST, as_matched, cell, number_of, same_value, truth
from skindx.data.tables.fields import TableFields, TableLog, WantedColumns
from skindx.data.tables.reader import read_table

LEFT_OUT = "left out"
"""Key of a line whose image is not taken: (status, detail)."""
ROWS = "rows"
"""Key of a line that shares its row with other images: what ties them."""
SHOWN_AS = "shown as"
"""Key of a line whose image has a modality of its own."""
ANYTHING = "*"
"""In a map of values: all others."""

_Map = Mapping[str, str | None]


class JoinedTable(TableFields):
    """A second table, whose line with the same key says more of an image."""

    path: Path
    key: str = Field(min_length=1)
    """The column of the first table, or of one joined before."""
    to: str = ""
    """The column of this table; "": of the same name."""


class ImageColumn(Settings):
    """One of several columns of a row that name images."""

    file: str = Field(min_length=1)
    modality: Modality = ""


class TableShape(TableFields):
    """What becomes of the lines of a table, in this order."""

    join: tuple[JoinedTable, ...] = Field((), exclude_if=lambda value: not value)
    values: Mapping[str, _Map] = Field({}, exclude_if=lambda value: not value)
    """Column -> what a value of it means: {biopsed: {true: histopathology}}; null: nothing."""
    where: Mapping[str, str | tuple[str, ...]] = Field({}, exclude_if=lambda value: not value)
    """Column -> the value, or the values, of the lines to take; `true` takes ja and 1 too."""
    where_not: Mapping[str, str | tuple[str, ...]] = Field({}, exclude_if=lambda value: not value)
    """Column -> the values of lines that are left out."""
    one_hot: str | tuple[str, ...] | Mapping[str, str] = Field(
        (), exclude_if=lambda value: not value
    )
    """Columns of which the largest is the label: their names, or column -> label; or one column
    whose cells hold {class: weight}. Of two equally large ones none is."""
    levels: tuple[str, ...] = Field((), exclude_if=lambda value: not value)
    """Columns of a hierarchy, the most specific first: the first that says something is the label.
    """
    labels: _Map = Field({}, exclude_if=lambda value: not value)
    """Label -> class; null leaves its images out, and * stands for every other label."""

    @property
    def columns_for_label(self) -> tuple[str, ...]:
        """The columns that the label is made of; none where one column has it."""
        one_hot = (self.one_hot,) if isinstance(self.one_hot, str) else tuple(self.one_hot)
        return (*filter(None, one_hot), *self.levels)

    @property
    def columns_for_choice(self) -> tuple[str, ...]:
        """The columns that decide whether a line is taken."""
        return (*self.where, *self.where_not)


@dataclass(frozen=True)
class _Shaped:
    """The columns to read of a table, beside those that other tables or pieces give."""

    columns: WantedColumns
    extra: tuple[str, ...]
    given: frozenset[str]
    """Columns that come from elsewhere, too."""
    made: frozenset[str]
    """Columns that pieces make, and the table need not have."""

    @property
    def wanted(self) -> tuple[str, ...]:
        names = (name for name in self.columns.wanted if name not in self.made)
        return tuple(dict.fromkeys((*names, *self.extra)))

    @property
    def also(self) -> Mapping[str, tuple[str, ...]]:
        return self.columns.also

    def check(self, path: Path, existing: object) -> None:
        names = [str(name) for name in existing] if isinstance(existing, list | tuple) else []
        self.columns.check(path, [*names, *(self.given | self.made)])
        for name in self.extra:
            if name not in names and name not in self.given:
                raise UserError(
                    f"{path} has no column {name!r}, which the recipe names; it has "
                    f"{', '.join(names)}: correct the recipe."
                )


@dataclass(frozen=True)
class _OfJoined:
    """The columns of a joined table: its key, and whatever the recipe names."""

    key: str
    names: tuple[str, ...]
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[str, ...]:
        return (self.key, *(name for name in self.names if name != self.key))

    def check(self, path: Path, existing: object) -> None:
        names = [str(name) for name in existing] if isinstance(existing, list | tuple) else []
        if self.key not in names:
            raise UserError(
                f"{path} has no column {self.key!r}; it has {', '.join(names)}: correct join."
            )
        if not set(self.names) - {self.key} & set(names):
            raise UserError(
                f"{path} has none of the columns that the recipe names ({', '.join(self.names)}); "
                f"it has {', '.join(names)}: name them, or leave the join out."
            )


class _Join:
    """A joined table by its keys."""

    def __init__(self, table: JoinedTable, names: Sequence[str], shape: TableShape) -> None:
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
        columns = _OfJoined(self.key, tuple(names))
        for line in read_table(table.path, columns, self.table, self.log):
            self._add(line)
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
                        f"{self.table.path} has {text[:60]!r} twice in {self.key!r}, with other "
                        f"values ({said}); correct it, or set on_conflict: list, which leaves the "
                        "images of such a key out."
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
                        f"of {key[:60]!r} {said}; correct one of the tables, or set on_conflict: "
                        "list, which leaves the image out."
                    )
                line.setdefault(LEFT_OUT, ("conflict", said))

    def notes(self, path: Path, example: str) -> list[str]:
        """Return what did not meet, in sentences. Raises UserError where nothing did."""
        notes = self.log.all_notes(self.table.path)
        if self._lone and not self._used:
            there = self.examples[0] if self.examples else ""
            raise UserError(
                f"no line of {path} has its key in {self.table.path}: {self.table.key} is such as "
                f"{example[:60]!r}, and {self.key} such as {there[:60]!r}; correct join."
            )
        if self._lone:
            notes.append(
                f"{path}: {counted(self._lone, 'line')} without a line in {self.table.path}."
            )
        if left := len(self.lines) - len(self._used):
            notes.append(f"{self.table.path}: {counted(left, 'line')} of no line in {path}.")
        return notes


def shaped_lines(
    path: Path,
    columns: WantedColumns,
    shape: TableShape,
    log: TableLog,
    *,
    label: str,
    images: Sequence[ImageColumn] = (),
    file: str = "",
    read: Callable[[WantedColumns], Iterator[dict[str, Any]]] | None = None,
) -> list[dict[str, Any]]:
    """Return the lines of a table as a recipe shapes them; `log` has what is to be said of it.

    `label` and `file` are the columns that the pieces fill; `read` gives the lines of what is no
    table. Raises UserError.
    """
    made = {label} if shape.columns_for_label else set()
    made |= {file} if images else set()
    extra = dict.fromkeys(
        (
            *shape.columns_for_label,
            *shape.columns_for_choice,
            *shape.values,
            *(image.file for image in images),
        )
    )
    names = tuple(dict.fromkeys((*columns.wanted, *extra, *(one.key for one in shape.join))))
    joins = [_Join(one, [n for n in names if n not in made], shape) for one in shape.join]
    given = frozenset(name for one in joins for name in one.columns)
    keys = [one.key for one in shape.join]
    wanted = _Shaped(columns, (*extra, *keys), given, frozenset(made - set(extra)))
    pieces = _Pieces(path, shape, label)
    lines: list[dict[str, Any]] = []
    example = ""
    found = read(wanted) if read else read_table(path, wanted, shape, log)
    for number, line in enumerate(found, 1):
        for one in joins:
            example = example or cell(line.get(one.table.key))
            one.into(line)
        pieces.shape_line(line)
        lines += _by_image(line, images, file, f"row {number}") if images else [line]
    log.names = (*log.names, *given)
    for one in joins:
        log.of_others += one.notes(path, example) if lines else []
    log.notes += pieces.notes()
    return lines


@dataclass
class _Pieces:
    """Applies the pieces of one table to its lines, and counts what they could not decide."""

    path: Path
    shape: TableShape
    label: str
    _left: Counter[str] = field(default_factory=Counter)
    _unmapped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._labels = _folded(self.shape.labels)
        self._values = {name: _folded(values) for name, values in self.shape.values.items()}
        self._where = [(name, _wanted(values)) for name, values in self.shape.where.items()]
        self._not = [(name, _wanted(values)) for name, values in self.shape.where_not.items()]

    def shape_line(self, line: dict[str, Any]) -> None:
        for name, values in self._values.items():
            line[name] = _mapped(values, line.get(name))
        if LEFT_OUT not in line:
            for name, wanted in self._where:
                if not _is_one_of(line.get(name), wanted):
                    self._leave(line, "filtered", f"its {name} is {_shown(line.get(name))}")
            for name, wanted in self._not:
                if _is_one_of(line.get(name), wanted):
                    self._leave(line, "filtered", f"its {name} is {_shown(line.get(name))}")
        if self.shape.one_hot:
            self._choose(line)
        if self.shape.levels:
            self._descend(line)
        if self.shape.labels:
            self._map(line)

    def _leave(self, line: dict[str, Any], status: str, detail: str) -> None:
        if LEFT_OUT not in line:
            line[LEFT_OUT] = (status, detail)
            self._left[status] += 1

    def _choose(self, line: dict[str, Any]) -> None:
        """Give a line the class whose column is largest."""
        weights, odd = self._weights(line)
        most = max(weights.values(), default=0.0)
        best = [name for name, weight in weights.items() if weight == most > 0]
        line[self.label] = best[0] if len(best) == 1 and not odd else ""
        if odd:
            self._leave(line, "no-label", f"{odd} is no number and no truth value")
        elif not best:
            self._leave(line, "no-label", "none of the columns of classes is set")
        elif len(best) > 1:
            if self.shape.on_conflict == "refuse":
                raise UserError(
                    f"{self.path} has a line of several classes ({' and '.join(best[:3])}), and "
                    "on_conflict is refuse; correct it, or set on_conflict: list."
                )
            self._leave(line, "conflict", f"it is of several classes: {' and '.join(best)}")

    def _weights(self, line: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """Return the weight of each class, and a cell that has none."""
        one_hot = self.shape.one_hot
        if isinstance(one_hot, str):
            raw = _written_weights(line.get(one_hot))
            odd = f"{one_hot} {cell(line.get(one_hot))[:40]!r}" if raw is None else ""
            return raw or {}, odd
        named = one_hot if isinstance(one_hot, Mapping) else {name: name for name in one_hot}
        weights: dict[str, float] = {}
        for column, name in named.items():
            text = cell(line.get(column))
            number = number_of(text)
            weight = float(truth(text) or 0) if number is None else number
            if number is None and truth(text) is None and not is_placeholder(text):
                return {}, f"{column} {text[:40]!r}"
            weights[name] = max(weight, weights.get(name, 0.0))
        return weights, ""

    def _descend(self, line: dict[str, Any]) -> None:
        """Give a line its most specific label, or the most specific that the map knows."""
        texts = [cell(line.get(level)) for level in self.shape.levels]
        said = [text for text in texts if not is_placeholder(text)]
        known = [text for text in said if as_matched(text) in self._labels]
        line[self.label] = next(iter((*known, *said)), "")

    def _map(self, line: dict[str, Any]) -> None:
        text = cell(line.get(self.label))
        if not text or LEFT_OUT in line:
            return
        other = self._labels.get(ANYTHING, text)
        label = self._labels.get(as_matched(text), other)
        if not label:
            self._leave(line, "unmapped-label", f"the recipe maps the label {text[:80]!r} to none")
        elif as_matched(text) not in self._labels and ANYTHING not in self._labels:
            self._unmapped[text] += 1
        line[self.label] = label or text

    def notes(self) -> list[str]:
        """Return what was left out or not mapped, in sentences."""
        notes = [
            f"{counted(count, 'line')} left out as {status}; issues.parquet lists them."
            for status, count in self._left.items()
        ]
        if self._unmapped and any(self._labels.values()):
            named = ", ".join(f"{text[:40]!r} ({n})" for text, n in self._unmapped.most_common(5))
            notes.append(f"labels that the recipe's labels do not name stay as they are: {named}.")
        return notes


def _by_image(
    line: dict[str, Any], images: Sequence[ImageColumn], file: str, row: str
) -> Iterator[dict[str, Any]]:
    """Yield a line for each image that a row names; all of them are tied together."""
    named = [image for image in images if not is_placeholder(cell(line.get(image.file)))]
    if not named:
        yield {**line, LEFT_OUT: line.get(LEFT_OUT, ("no-file", "its row names no image"))}
    for image in named:
        one = {**line, file: line[image.file]}
        if len(named) > 1:
            one[ROWS] = row
        if image.modality:
            one[SHOWN_AS] = image.modality
        yield one


def _folded(values: _Map) -> dict[str, str]:
    return {
        name if name == ANYTHING else as_matched(name): value or ""
        for name, value in values.items()
    }


def _mapped(values: Mapping[str, str], value: object) -> object:
    """Return what a map makes of a value; a truth value meets true, ja and 1."""
    text = as_matched(value)
    if text in values:
        return values[text]
    known = truth(value)
    word = {True: "true", False: "false"}.get(known) if known is not None else None
    return values.get(word or "", values.get(ANYTHING, value))


def _wanted(values: str | Iterable[str]) -> frozenset[str]:
    return frozenset(map(as_matched, [values] if isinstance(values, str) else values))


def _is_one_of(value: object, wanted: frozenset[str]) -> bool:
    known = truth(value)
    return as_matched(value) in wanted or (known is not None and folded_name(str(known)) in wanted)


def _shown(value: object) -> str:
    return repr(cell(value)[:60]) if cell(value) else "empty"


def _written_weights(value: object) -> dict[str, float] | None:
    """Return what a cell such as {'Eczema': 0.7} says; None for what says nothing of the kind."""
    if isinstance(value, str):
        if not value.strip():
            return {}
        try:
            if len(value) > LONGEST:
                return None
            value = json.loads(value)
        except (ValueError, RecursionError):
            try:
                value = ast.literal_eval(str(value))
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                return None
    if value is None:
        return {}
    if not isinstance(value, dict):
        return None
    numbers = {
        str(name): number_of(cell(weight)) for name, weight in value.items() if weight is not None
    }
    known = {name: number for name, number in numbers.items() if number is not None}
    return known if len(known) == len(numbers) else None
