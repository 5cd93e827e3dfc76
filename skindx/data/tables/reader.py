"""The one reader of tables: CSV, JSON and JSON lines, Parquet, workbooks, NPZ and HDF5.

Nothing is guessed away: a column twice or a line that does not fit its header is refused, or, where
`on_conflict: list` says so, left out and named. What is passed over is counted in a `TableLog`.
"""

import csv
import itertools
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.core.text import counted, folded_name
from skindx.data.tables.archives import DAMAGED, file_on_disk
from skindx.data.tables.arrays import SUFFIXES as ARRAYS
from skindx.data.tables.arrays import array_tables
from skindx.data.tables.cells import cell, plain_value, same_value
from skindx.data.tables.fields import NeededColumns, TableFields, TableLog, WantedColumns
from skindx.data.tables.text_files import open_text, separated
from skindx.data.tables.workbook import Workbook, WorkbookSheet, open_workbook

UNREADABLE = (
    *(OSError, ValueError, OverflowError, RecursionError, MemoryError, LookupError, EOFError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError),
)
"""What hostile tables raise beside what their reader's own package does."""
SUFFIXES = (".csv", ".jsonl", ".parquet", ".tsv", ".xlsx")
ONE_ROW = 1
"""Rows of a Parquet file that are unpacked at once: a few kB may say one long text a million times.

A row then takes 0.1 ms, which is nothing beside its image.
"""
_MANY_ROWS = 4096
"""Rows unpacked at once where all columns are texts and numbers."""
_HEADER_WITHIN = 50
"""Rows of a sheet among which the header is looked for: titles and notes stand above many."""
_MOST_JSON = 1 << 30


_Named = Iterator[tuple[str, Sequence[Any]]]
"""(where it stands, cells) of each row."""


@dataclass
class _Reading:
    """One table while it is read."""

    path: Path
    shown: Path
    """The path as the recipe names it, where `path` is a copy out of an archive."""
    columns: WantedColumns
    fields: TableFields | None
    log: TableLog
    every: bool
    short: bool = False
    _names: list[str] = field(default_factory=list)
    _double: dict[int, int] = field(default_factory=dict)
    """Place of a column that stands twice -> place of the first of that name."""

    @property
    def lists(self) -> bool:
        return self.fields is not None and self.fields.on_conflict == "list"

    def conflict(self, where: str, why: str, step: str) -> None:
        """Leave a line out, or raise UserError."""
        if self.lists:
            self.log.dropped.append((where, why))
            return
        hint = (
            "" if self.fields is None else ", or set `on_conflict: list`, which leaves the line out"
        )
        raise UserError(f"{self.path}, {where}, {why}; {step}{hint}.")

    def take_header(self, existing: Sequence[Any]) -> list[str]:
        """Return the columns by the names that are wanted, where these fold alike.

        Raises UserError for a wanted column that stands there twice.
        """
        names = ["" if name is None else cell(name) for name in existing]
        wanted, there = self.columns.wanted, set(names)
        folded = set(map(folded_name, names))
        alike = {
            folded_name(other): name
            for name, others in self.columns.also.items()
            if folded_name(name) not in folded
            for other in [one for one in others if folded_name(one) in folded][:1]
        }
        alike |= {folded_name(name): name for name in reversed(wanted)}
        known = []
        for name in names:
            meant = alike.get(folded_name(name), name)
            known.append(name if meant in there else meant)
        first: dict[str, int] = {}
        for place, name in enumerate(known):
            if name in wanted and first.setdefault(name, place) != place:
                self._double[place] = first[name]
        for place, name in enumerate(known):
            meant = alike.get(folded_name(name), name)
            if name not in first and meant in first and meant not in self.columns.also:
                self._double[place] = first[meant]  # such as Label beside label: each row decides
        for name in wanted:
            if known.count(name) > 1 and not self.lists:
                raise UserError(
                    f"{self.path} has two columns of the name {name!r}; delete or rename one of "
                    "them in the table."
                )
        self.columns.check(self.path, known)
        self._names, self.log.names = known, tuple(known)
        return known

    def taken(self) -> dict[str, int]:
        """Return the columns to read, and where they stand."""
        wanted = self._names if self.every else self.columns.wanted
        return {name: self._names.index(name) for name in wanted if name in self._names}

    def agree(self, where: str, cells: Sequence[Any]) -> bool:
        """Tell whether a row says the same in a column that stands twice."""
        for place, first in self._double.items():
            if not same_value(cells[place], cells[first]):
                self.conflict(
                    where,
                    f"says {cell(cells[first])[:40]!r} and {cell(cells[place])[:40]!r} in two "
                    f"columns {self._names[first]!r}",
                    "make the two cells equal",
                )
                return False
        return True

    def of_rows(self, rows: _Named, *, padded: bool) -> Iterator[dict[str, Any]]:
        """Yield the lines of rows of cells below a header; `padded`: empty last cells may lack."""
        taken, width = self.taken(), len(self._names)
        keys, pick = list(taken), _picker(list(taken.values()))
        empty = 0
        for where, cells in rows:
            if len(cells) == width:
                row: Sequence[Any] | None = cells
            elif not any(map(cell, cells)):
                row = ()
            else:
                row = self._fitted(where, cells, width, padded=padded)
            if row is None or (row and self._double and not self.agree(where, row)):
                continue
            line = dict(zip(keys, pick(row), strict=True)) if row else {}
            if not any(line.values()) and not any(map(cell, row)):
                empty += 1
                continue
            self.log.lines += 1
            self.log.at = where
            yield line
        if empty:
            self.log.notes.append(f"{counted(empty, 'empty line')} passed over.")

    def _fitted(
        self, where: str, cells: Sequence[Any], width: int, *, padded: bool
    ) -> Sequence[Any] | None:
        """Return a row of another length as one of the header's; None: it is left out."""
        if any(map(cell, cells[width:])) or (len(cells) < width and not padded):
            self.conflict(
                where,
                f"has {len(cells)} cells and the header has {width}, so its values would stand in "
                "wrong columns",
                "put quotation marks around a text that holds the separator",
            )
            return None
        return [*cells[:width], *[None] * (width - len(cells))]

    def header_or(self, rows: _Named) -> tuple[Sequence[Any], _Named]:
        """Return the names of columns, and the rows below: the recipe's `header` is no row."""
        given = self.fields.header if self.fields else ()
        first = next(rows, None)
        while first is not None and not any(map(cell, first[1])):
            first = next(rows, None)
        if not given:
            return (first[1] if first else []), rows
        if first is None:
            return given, rows
        if [folded_name(cell(one)) for one in first[1]] == list(map(folded_name, given)):
            return given, rows
        return given, itertools.chain([first], rows)

    def of_text(self) -> Iterator[dict[str, Any]]:
        with open_text(self.path) as (file, encoding):
            wanted = (*self.columns.wanted, *(self.fields.header if self.fields else ()))
            rows, _ = separated(file, wanted, strict=not self.short)
            header, below = self.header_or((f"line {number}", cells) for number, cells in rows)
            self.take_header(header)
            yield from self.of_rows(below, padded=self.short)
        if encoding == "cp1252":
            self.log.notes.append("it is no UTF-8 and was read as Windows-1252; look at its names.")

    def of_json_lines(self) -> Iterator[dict[str, Any]]:
        with open_text(self.path) as (file, _):
            for number, text in enumerate(file, 1):
                pairs = json.loads(text, object_pairs_hook=_Pairs) if text.strip() else None
                if text.strip() and not isinstance(pairs, _Pairs):
                    raise UserError(
                        f"line {number} of {self.path} is not a JSON object; correct or delete "
                        "that line."
                    )
                if pairs is not None:
                    yield from self._of_pairs(f"line {number}", pairs)

    def of_json(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list."""
        if self.path.stat().st_size > _MOST_JSON:
            raise UserError(
                f"{self.path} is too large for one JSON list; save it as JSON lines (.jsonl)."
            )
        with open_text(self.path) as (file, _):
            content = json.loads(file.read(), object_pairs_hook=_Pairs)
        if isinstance(content, _Pairs) or not isinstance(content, list):
            raise UserError(
                f"{self.path} is not a table, because it is not a list of JSON objects; put the "
                "objects into a list, [{...}, {...}]. If each image has a JSON file of its own, "
                "write a recipe with `kind: sidecars`."
            )
        for number, pairs in enumerate(content, 1):
            if not isinstance(pairs, _Pairs):
                raise UserError(
                    f"entry {number} of {self.path} is not a JSON object; correct the list."
                )
            yield from self._of_pairs(f"entry {number}", pairs)

    def _of_pairs(self, where: str, pairs: "_Pairs") -> Iterator[dict[str, Any]]:
        before = self.log.names
        self._double.clear()
        names = self.take_header([name for name, _ in pairs])
        self.log.names = tuple(dict.fromkeys((*before, *names)))
        values = [_plain(value) for _, value in pairs]
        if not self._double or self.agree(where, values):
            self.log.lines += 1
            self.log.at = where
            first = reversed(list(zip(names, values, strict=True)))
            yield dict(reversed(list(dict(first).items())))

    def of_parquet(self) -> Iterator[dict[str, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            schema = file.schema_arrow
        if len(set(schema.names)) < len(schema.names):
            self.fields = None  # pyarrow reads such columns by no name
        self.take_header(schema.names)
        read = {schema.names[place]: name for name, place in self.taken().items()}
        kinds = {name: schema.field(name).type for name in read}
        texts = [name for name, kind in kinds.items() if kind in (pa.string(), pa.large_string())]
        others = [kind for name, kind in kinds.items() if name not in texts]
        plain = all(pa.types.is_primitive(kind) or pa.types.is_null(kind) for kind in others)
        rows = _MANY_ROWS if plain else ONE_ROW
        # A text that many rows have comes once, and is cut once.
        with pq.ParquetFile(self.path, read_dictionary=texts, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=rows, columns=list(read)):
                columns = [_values(batch.column(name)) for name in read]
                for row in zip(*columns, strict=True):
                    self.log.lines += 1
                    yield dict(zip(read.values(), row, strict=True))

    def of_arrays(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of each split's arrays."""
        with array_tables(self.path, self.shown.name, self.log.notes) as tables:
            before: tuple[str, ...] = ()
            for columns in tables:
                self.take_header(list(columns))
                self.log.names = before = tuple(dict.fromkeys((*before, *columns)))
                rows = enumerate(zip(*columns.values(), strict=True), 1)
                yield from self.of_rows(((f"row {n}", cells) for n, cells in rows), padded=False)
        if not before:
            raise UserError(
                f"{self.path} has no arrays that can be columns of a table; set `path` in the "
                "recipe to a table, and name this file in `files` if it has the images."
            )

    def of_workbook(self) -> Iterator[dict[str, Any]]:
        book = open_workbook(self.path)
        with book.archive:
            sheet, header_row, header = self._sheet(book)
            book.odd.clear()  # of the rows above the header
            self.take_header(header)
            rows = ((f"row {number}", cells) for number, cells in book.rows(sheet))
            if header_row:
                while next(rows)[0] != f"row {header_row}":
                    pass
            yield from self.of_rows(rows, padded=True)
        for what, count in (+book.odd).items():
            self.log.notes.append(f"{count} {what} count as empty.")
        named = self.fields is not None and self.fields.sheet
        if not named and (others := [one.name for one in book.sheets if one is not sheet]):
            self.log.notes.append(f"the sheet {sheet.name!r} is read, not {', '.join(others)}.")

    def _sheet(self, book: Workbook) -> tuple[WorkbookSheet, int, Sequence[Any]]:
        """Return the sheet to read, the row of its header (0: none), and the header.

        Raises UserError where several sheets or none could be meant.
        """
        fields = self.fields or TableFields()
        named = [one for one in book.sheets if folded_name(one.name) == folded_name(fields.sheet)]
        if fields.sheet and not named:
            names = ", ".join(one.name for one in book.sheets)
            raise UserError(
                f"{self.path} has no sheet {fields.sheet!r}; set `sheet` in the recipe to one of: "
                f"{names}."
            )
        sheets = named or [one for one in book.sheets if not one.hidden] or book.sheets
        wanted = {folded_name(name) for name in self.columns.wanted}
        wanted |= {folded_name(one) for names in self.columns.also.values() for one in names}
        best: list[tuple[int, WorkbookSheet, int, Sequence[Any]]] = []
        for sheet in sheets:
            rows = list(itertools.islice(book.rows(sheet), _HEADER_WITHIN))
            if fields.header and rows:
                best.append((0, sheet, 0, fields.header))
            elif rows:
                hits = [len(wanted & {folded_name(cell(one)) for one in row}) for _, row in rows]
                at = hits.index(max(hits))
                header = [" ".join(cell(one).split()) for one in rows[at][1]]
                best.append((hits[at], sheet, rows[at][0], header))
        if not best:
            raise UserError(f"{self.path} has no rows; give a table with one row an image.")
        most = max(hits for hits, *_ in best)
        first, *others = [one for one in best if one[0] == most]
        if others and not fields.sheet:
            names = " and ".join(one[1].name for one in (first, *others))
            raise UserError(
                f"{self.path} has the needed columns in several sheets ({names}); set `sheet` in "
                "the recipe to one of them."
            )
        return first[1:]


def _values(column: Any) -> list[Any]:
    """Return the cells of a column of Arrow."""
    import pyarrow as pa

    if not isinstance(column, pa.DictionaryArray):
        return list(map(plain_value, column.to_pylist()))
    places, texts = column.indices.to_pylist(), column.dictionary
    known = {at: plain_value(texts[at].as_py()) for at in {*places} - {None}}
    return [known.get(at) for at in places]


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return what takes these cells of a row."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda cells: [cells[place] for place in places]


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a JSON object, of which a key may stand twice."""


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _plain(inner) for key, inner in value}
    return list(map(_plain, value)) if isinstance(value, list) else value


_READERS = {
    **dict.fromkeys((".csv", "", ".tab", ".tsv", ".txt"), _Reading.of_text),
    **dict.fromkeys((".jsonl", ".ndjson"), _Reading.of_json_lines),
    ".json": _Reading.of_json,
    ".parquet": _Reading.of_parquet,
    **dict.fromkeys((".xlsx", ".xlsm"), _Reading.of_workbook),
    **dict.fromkeys(ARRAYS, _Reading.of_arrays),
}
"""Dataverse's tables end in .tab; the separator is that of the header."""
_SAVE_AGAIN = "open it in the program that wrote it, and save it again"
_OTHERS = dict.fromkeys((".xls", ".ods", ".numbers"), "save it as .xlsx or as CSV")


def is_table(path: Path) -> bool:
    """Tell whether a file's name says that it is a table that can be read."""
    return path.suffix.lower() in _READERS


def read_table(
    path: Path,
    columns: WantedColumns,
    fields: TableFields | None = None,
    log: TableLog | None = None,
    *,
    every: bool = False,
    short: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a table by column: the wanted ones that are there, or `every`.

    `log` is whole when the last line has been taken. `short`: lines of a text may lack their last
    cells, and the last line may be torn. Raises UserError for what is no such table.
    """
    import pyarrow as pa

    file = path
    if not is_table(path):
        step = _OTHERS.get(path.suffix.lower(), f"give one of {', '.join(SUFFIXES)}")
        raise UserError(f"{path} is not a table of a known format; {step}.")
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a plain file; give the path of a table file.")
        with file_on_disk(path) as file:
            reading = _Reading(file, path, columns, fields, log or TableLog(), every, short)
            yield from _READERS[path.suffix.lower()](reading)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"the table {path} does not exist; correct its path.") from None
    except UserError as error:
        if file == path:
            raise
        raise UserError(str(error).replace(str(file), str(path))) from None
    except (*UNREADABLE, *DAMAGED, csv.Error, pa.ArrowException) as error:
        detail = " ".join(str(error).split())[:300]
        raise UserError(f"{path} cannot be read as a table ({detail}); {_SAVE_AGAIN}.") from None


def named_rows(
    path: Path, needed: tuple[str, ...] = (), *, short: bool = False
) -> list[tuple[str, dict[str, str]]]:
    """Return (where it stands, cells by column) of all lines of a table that skindx wrote.

    People may have changed it. `short` is as for `read_table`. Raises UserError, also for a table
    that lacks a `needed` column.
    """
    log = TableLog()
    rows = []
    for line in read_table(path, NeededColumns(needed), None, log, every=True, short=short):
        texts = {name: one if isinstance(one, str) else cell(one) for name, one in line.items()}
        rows.append((log.at, texts))
    if twice := [name for name, count in Counter(log.names).items() if count > 1 and name]:
        raise UserError(
            f"{path} has two columns of the name {twice[0]!r}; delete or rename one of them."
        )
    return rows
