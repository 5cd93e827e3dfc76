"""The pieces that make lines of images out of the tables that people have.

A second table joined by key, columns made of several, a column for each class (one-hot), levels of
a hierarchy, a map of labels or of any column's values, several images a row, a filter. What a piece
cannot decide is left out of the dataset with its reason, never guessed.
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
from skindx.data.tables.cells import LONGEST, as_matched, cell, number_of, truth
from skindx.data.tables.combined import Combine, CombinedColumns
from skindx.data.tables.fields import LEFT_OUT, LISTED, TableFields, TableLog, WantedColumns
from skindx.data.tables.joins import Join, JoinedTable
from skindx.data.tables.reader import read_table

ROWS = "rows"
"""Key of a line that shares its row with other images: what ties them."""
SHOWN_AS = "shown as"
"""Key of a line whose image has a modality of its own."""
ANYTHING = "*"
"""Key in a map of values that stands for all others."""

_Map = Mapping[str, str | None]


class ImageColumn(Settings):
    """One of several columns of a row that name images."""

    file: str = Field(min_length=1)
    modality: Modality = ""


class TableShape(TableFields):
    """What becomes of the lines of a table, in this order."""

    join: tuple[JoinedTable, ...] = Field((), exclude_if=lambda value: not value)
    combine: Combine = Field({}, exclude_if=lambda value: not value)
    """New column -> the columns that it is made of: a list, of which the first that says something
    counts, or columns of yes and no, of which the one that is set counts: {arm_yes: arm}, or a
    pattern such as body_parts_*, where * is the value; or a text such as "{license} {version}"."""
    values: Mapping[str, _Map] = Field({}, exclude_if=lambda value: not value)
    """Column -> what a value of it means: {biopsed: {true: histopathology}}; null: nothing, and *:
    any other that says something."""
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
    combined: CombinedColumns

    @property
    def wanted(self) -> tuple[str, ...]:
        names = (name for name in self.columns.wanted if name not in self.made)
        return tuple(dict.fromkeys((*names, *self.extra, *self.combined.matched)))

    @property
    def also(self) -> Mapping[str, tuple[str, ...]]:
        return self.columns.also

    def check(self, path: Path, existing: object) -> None:
        names = [str(name) for name in existing] if isinstance(existing, list | tuple) else []
        self.columns.check(path, [*names, *(self.given | self.made)])
        self.combined.check(path, names)
        for name in self.extra:
            if name not in names and name not in self.given:
                raise UserError(
                    f"{path} has no column {name!r}, which the recipe names; name one of its "
                    f"columns in the recipe: {', '.join(names)}."
                )


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
    combined = CombinedColumns(shape.combine)
    asked = (*shape.columns_for_label, *shape.columns_for_choice, *shape.values)
    extra = dict.fromkeys((*asked, *combined.named, *(image.file for image in images)))
    new = set(shape.combine) - set(combined.named)
    extra = dict.fromkeys(name for name in extra if name not in new)
    made |= new
    names = tuple(dict.fromkeys((*columns.wanted, *extra, *(one.key for one in shape.join))))
    joins = [Join(one, [n for n in names if n not in made], shape, combined) for one in shape.join]
    given = frozenset(name for one in joins for name in one.columns)
    keys = [one.key for one in shape.join]
    wanted = _Shaped(columns, (*extra, *keys), given, frozenset(made - set(extra)), combined)
    pieces = _Pieces(path, shape, label)
    lines: list[dict[str, Any]] = []
    example = ""
    found = read(wanted) if read else read_table(path, wanted, shape, log)
    for number, line in enumerate(found, 1):
        for one in joins:
            example = example or cell(line.get(one.table.key))
            one.into(line)
        combined.fill(line)
        pieces.shape_line(line)
        lines += _by_image(line, images, file, f"row {number}") if images else [line]
    log.names = (*log.names, *given)
    for one in joins:
        log.of_others += one.notes(path, example) if lines else []
    log.notes += combined.notes() + pieces.notes()
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
                    f"{self.path} marks several classes in one line ({' and '.join(best[:3])}); "
                    f"correct the table, or {LISTED}."
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
    known = truth(value)
    word = text if known is None or text in values else str(known).casefold()
    other = value if is_placeholder(text) else values.get(ANYTHING, value)
    return values.get(word, other)


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
