"""What a folder holds, by names and by the first lines of its tables: nothing else is opened."""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

from skindx.core.errors import UserError
from skindx.core.text import folded_name
from skindx.data.tables.archives import DAMAGED, ENDINGS, ArchiveFiles
from skindx.data.tables.cells import cell
from skindx.data.tables.fields import TableFields
from skindx.data.tables.reader import UNREADABLE, is_table, read_table
from skindx.data.tables.workbook import open_workbook

IMAGE_ENDINGS = frozenset(
    {end.lower() for end in ENDINGS[1:]} | {".jfif", ".jpe", ".gif", ".heic", ".avif"}
)
_DEEPEST, _MOST_ENTRIES = 8, 5_000_000
_MOST_TABLES, _MOST_TEXTS = 64, 8
"""Tables that are looked into; and files of a folder without the ending of a table: a folder of
more has a text for each image."""
_NO_TABLE = re.compile(
    r"readme|licen[cs]e|attribution|requirements|classes|data\.yaml", re.IGNORECASE
)
HEAD_LINES = 4000
"""Lines of a table that are read to see what its columns hold."""
_MOST_JSON = 4 << 20


@dataclass(frozen=True)
class TableHead:
    """The columns and the first lines of a table, or of one sheet of a workbook."""

    path: Path
    columns: tuple[str, ...]
    lines: tuple[dict[str, Any], ...] = field(repr=False)
    sheet: str = ""
    headless: bool = False
    """Its first line looks like data and names no columns."""

    @cached_property
    def folded(self) -> frozenset[str]:
        return frozenset(map(folded_name, self.columns))

    def has(self, names: Sequence[str]) -> bool:
        """Tell whether the table has all columns; `a|b` is either of two."""
        return all(
            any(folded_name(one) in self.folded for one in name.split("|")) for name in names
        )

    def cells(self, column: str) -> list[str]:
        """Return what stands in a column, the empty cells too."""
        return [cell(line.get(column)) for line in self.lines]


@dataclass
class FolderContents:
    """The files of a folder and of the folders in it, by kind; hidden ones and links are passed."""

    root: Path
    images: dict[str, list[str]] = field(default_factory=dict)
    """Folder, relative with / -> names of the files in it that are named as images."""
    archives: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """All other files, relative with /."""
    folders: list[str] = field(default_factory=list)

    @classmethod
    def listed(cls, root: Path) -> "FolderContents":
        """List a folder. Raises UserError for one that cannot be listed."""
        contents = cls(root)
        waiting, entries = [("", 0)], 0
        while waiting:
            folder, depth = waiting.pop(0)
            try:
                with os.scandir(root / folder) as listed:
                    found = sorted(listed, key=lambda entry: entry.name)
            except OSError as error:
                raise UserError(
                    f"the folder {root / folder} cannot be read ({error.strerror}); allow your "
                    "user to read it (chmod)."
                ) from None
            entries += len(found)
            for entry in found:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    contents.folders.append(name)
                    if depth < _DEEPEST and entries < _MOST_ENTRIES:
                        waiting.append((name, depth + 1))
                elif entry.is_file():
                    contents._add(folder, entry.name, name)
        return contents

    def _add(self, folder: str, name: str, path: str) -> None:
        ending = "." + name.rpartition(".")[2].lower()
        if ending in IMAGE_ENDINGS:
            self.images.setdefault(folder, []).append(name)
        elif ending in _ARCHIVES and "." in name:
            self.archives.append(path)
        else:
            self.others.append(path)

    @cached_property
    def packed(self) -> dict[str, list[str]]:
        """Folder in an archive, such as images.zip/a -> names of the images in it.

        HDF5 with an image a key is opened only where no image lies beside it: it may have 400,000.
        """
        found: dict[str, list[str]] = {}
        for archive, members in self._members.items():
            for member in members:
                path = PurePosixPath(archive, member)
                if path.suffix.lower() in IMAGE_ENDINGS:
                    found.setdefault(path.parent.as_posix(), []).append(path.name)
        stores = [one for one in self.others if one.lower().endswith(_HDF5)]
        files = ArchiveFiles(self.root)
        for store in stores if not found and not self.images else ():
            with suppress(UserError):
                files.find(f"{store}/-")
                for key in files.images(store):
                    above, _, name = key.rpartition("/")
                    found.setdefault(above, []).append(name)
        return found

    @cached_property
    def _members(self) -> dict[str, list[str]]:
        """The members of each zip and tar; the build says what is wrong with another one."""
        files, found = ArchiveFiles(self.root), {}
        for archive in self.archives:
            with suppress(UserError):
                found[archive] = list(files.members(archive))
        return found

    @cached_property
    def count(self) -> int:
        """The number of files that are named as images, those in archives too."""
        return sum(map(len, self.images.values())) + sum(map(len, self.packed.values()))

    @cached_property
    def tables(self) -> tuple[TableHead, ...]:
        """The tables, nearest to the top first."""
        inside = (f"{one}/{name}" for one, names in self._members.items() for name in names)
        paths = [Path(name) for name in (*self.others, *inside) if is_table(Path(name))]
        if any(not path.name.lower().endswith(_HDF5) for path in paths):
            paths = [path for path in paths if not path.name.lower().endswith(_HDF5)]
        texts: dict[Path, int] = {}
        for path in paths:
            if path.suffix.lower() in ("", ".txt", ".json"):
                texts[path.parent] = texts.get(path.parent, 0) + 1
        paths = [
            path
            for path in sorted(paths, key=lambda one: (len(one.parts), one))
            if path.suffix.lower() not in ("", ".txt", ".json")
            or (texts[path.parent] <= _MOST_TEXTS and not _NO_TABLE.match(path.name))
        ]
        heads = (head for path in paths[:_MOST_TABLES] for head in heads_of(self.root / path))
        return tuple(head for head in heads if len(head.columns) > 1 and head.lines)

    def sidecar(self) -> tuple[str, dict[str, Any]]:
        """Return the first image with a JSON file beside it, and what the JSON says; or nothing.

        In tars and zips, too, where crawlers put both.
        """
        names = set(self.others)
        for folder, images in self.images.items():
            for image in images[:3]:
                path = f"{folder}/{image}" if folder else image
                for beside in (f"{path}.json", f"{os.path.splitext(path)[0]}.json"):  # noqa: PTH122
                    if beside in names and isinstance(said := _json(self.root / beside), dict):
                        return path, said
        files = ArchiveFiles(self.root)
        for archive, members in self._members.items():
            inside = set(members)
            for image in members[:6]:
                beside = f"{os.path.splitext(image)[0]}.json"  # noqa: PTH122
                member = files.find(f"{archive}/{beside}") if beside in inside - {image} else None
                if member and isinstance(said := _json_of(member), dict):
                    return f"{archive}/{image}", said
        return "", {}

    def pages(self) -> Iterator[tuple[str, Any]]:
        """Yield some JSON files that lie in folders of images, and their content."""
        for folder in self.images:
            own = [one for one in self.others if one.endswith(".json")]
            own = [one for one in own if one.rpartition("/")[0] == folder]
            for name in own[:2]:
                yield name, _json(self.root / name)


_HDF5 = (".h5", ".hdf5")
_ARCHIVES = frozenset({".zip", ".tar", ".tgz", ".gz"})


def heads_of(path: Path) -> list[TableHead]:
    """Return the head of a table, or of each sheet of a workbook; none of what is no table.

    Parquet with images inside is none: its lines would be read with them.
    """
    if path.suffix.lower() == ".parquet" and _has_bytes(path):
        return []
    if path.suffix.lower() not in (".xlsx", ".xlsm"):
        return [head] if (head := _head(path)) else []
    try:
        book = open_workbook(path)
        with book.archive:
            sheets = [sheet.name for sheet in book.sheets if not sheet.hidden]
    except (UserError, *UNREADABLE):
        return []
    heads = (_head(path, sheet if len(sheets) > 1 else "") for sheet in sheets)
    return [head for head in heads if head]


@dataclass
class _AllColumns:
    """Wants no column, so that all are read, and notes their names."""

    names: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    also: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def check(self, path: Path, existing: object) -> None:
        self.names = tuple(existing) if isinstance(existing, list | tuple) else ()


def _head(path: Path, sheet: str = "") -> TableHead | None:
    columns = _AllColumns()
    try:
        # A line that does not fit is the build's to refuse.
        fields = TableFields(sheet=sheet, on_conflict="list")
        rows = read_table(path, columns, fields, every=True)
        lines = tuple(itertools.islice(rows, HEAD_LINES))
        rows.close()  # type: ignore[attr-defined]
    except UserError:
        return None
    names = tuple(columns.names)
    return TableHead(path, names, lines, sheet, _is_data(names, lines))


def _is_data(names: Sequence[str], lines: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a header looks like the lines below it: numbers, or the cells of its columns."""
    if not lines or not names:
        return False
    numbers = sum(_is_number(name) for name in names)
    first = names[0]
    shape = re.sub(r"\d", "0", first)
    alike = bool(re.search(r"\d", first)) and any(
        re.sub(r"\d", "0", cell(line.get(first))) == shape for line in lines[:3]
    )
    return alike or numbers > len(names) / 2


def _has_bytes(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            kinds = [field.type for field in file.schema_arrow]
    except (*UNREADABLE, pa.ArrowException):
        return False
    nested = (pa.types.is_struct, pa.types.is_binary, pa.types.is_large_binary)
    return any(holds(kind) for kind in kinds for holds in nested)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _json(path: Path) -> Any:
    return _json_of(lambda: path.open("rb"))


def _json_of(opened: Callable[[], IO[bytes]]) -> Any:
    """Return what a JSON file says; None for what is none, or too large."""
    try:
        with opened() as file:
            text = file.read(_MOST_JSON + 1)
        return json.loads(text.decode("utf-8-sig")) if len(text) <= _MOST_JSON else None
    except (*DAMAGED, RecursionError):
        return None
