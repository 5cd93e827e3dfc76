"""A table of images on this disk as a source: each line names a file and what is known of it."""

import os
import posixpath
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr

from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.data.ledger import FROM, LedgerRow
from skindx.data.origin import Modality
from skindx.data.placeholders import is_placeholder
from skindx.data.sources.columns import Columns, first_there, stated_modality
from skindx.data.sources.file_patterns import expanded, filled
from skindx.data.sources.folder import MAX_BYTES, look_at, visible
from skindx.data.sources.image_source import NO_LABEL, LocalSource, SourcePreview
from skindx.data.tables.archives import DAMAGED, ArchiveFiles, archive_above, is_there
from skindx.data.tables.cells import cell, same_value
from skindx.data.tables.fields import LEFT_OUT, LISTED, TableFields, TableLog
from skindx.data.tables.shape import ROWS, SHOWN_AS, ImageColumn, TableShape, shaped_lines
from skindx.imaging.image_formats import HEAD, image_suffix, unusable


class FileColumns(Columns):
    """Columns of the table by meaning; `file` is a path relative to the table, or `files` of it."""

    file: str = Field("file", min_length=1)
    licence: str = "licence"
    attribution: str = "attribution"
    group: str | tuple[str, ...] = "group"
    skin_type: str = "skin_type"
    origin: str = Field("", exclude_if=lambda column: not column)
    """Where each image came from; the host of a URL. It becomes a part of the image's source."""


AT = "at"
"""Key of a line that could not be read: where it stands."""


class TableOfFiles(TableFields, LocalSource):
    """A table that names files on this disk; `lines` says what each line knows of its image.

    Files of the same folders that look like images and stand in no line become issues.
    """

    path: Path
    licence: str = Field("", exclude_if=lambda text: not text)
    creator: str = Field("", exclude_if=lambda text: not text)
    attribution: str = Field("", exclude_if=lambda text: not text)
    """Attribution of images whose line states none, as are licence and creator above."""

    knows_labels: ClassVar[bool] = True

    _notes: list[str] = PrivateAttr(default_factory=list)
    """What the last reading of the table passed over."""
    _packed: ArchiveFiles | None = PrivateAttr(None)
    _listed: dict[str, frozenset[str]] = PrivateAttr(default_factory=dict)

    @property
    @abstractmethod
    def table(self) -> Path:
        """The table's file."""

    @property
    @abstractmethod
    def known_columns(self) -> FileColumns:
        """The columns of `lines`."""

    @property
    def root(self) -> Path:
        """The folder to which paths are relative, and out of which none leads."""
        return self.table.parent

    @abstractmethod
    def lines(self) -> list[dict[str, Any]]:
        """Read the table. Raises UserError."""

    def file_of(self, line: Mapping[str, Any]) -> str:
        """Return the path of a line's file, relative to `root`."""
        text = cell(line.get(self.known_columns.file))
        # Tables of Windows; a file that has such a name is that file.
        return text if "\\" not in text or _is_there(self.root / text) else text.replace("\\", "/")

    def files_of(self, line: Mapping[str, Any]) -> list[str]:
        """Return all paths at which a line's file or a copy of it may be."""
        return [self.file_of(line)]

    def known(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the ledger's row that a line gives."""
        given = {name: getattr(self, name) for name in ("licence", "creator", "attribution")}
        known = self.known_columns.known(line, **given)
        if ROWS in line:
            known["group"] = "\n".join(filter(None, (known["group"], f"row={line[ROWS]}")))
        return known | ({"modality": line[SHOWN_AS]} if SHOWN_AS in line else {})

    def preview(self) -> SourcePreview:
        """Return the labels of all lines, and what is odd in the table. Raises UserError."""
        self._listed.clear()
        lines, columns = self.lines(), self.known_columns
        taken = [line for line in lines if LEFT_OUT not in line]
        labels = [cell(line.get(columns.label)) for line in taken]
        files = [self.file_of(line) for line in taken]
        odd = {
            "of its lines name files that are not there": [
                file for file in files if not self._has(file)
            ],
            "files beside it stand in no line of it and are left out": self._unlisted(lines),
            **columns.odd_facts(lines),
        }
        for what, names in list(odd.items())[:2]:
            if names and self.on_conflict == "refuse":
                raise UserError(
                    f"{self.table}: {len(names)} {what}, such as {names[0]}; correct the table or "
                    "the folder, or change `on_conflict: refuse` in the recipe to `on_conflict: "
                    "list`, which leaves such images out."
                )
        notes = [
            f"{self.table}: {len(names)} {what}, such as {', '.join(dict.fromkeys(names[:3]))}."
            for what, names in odd.items()
            if names
        ]
        return SourcePreview([label for label in labels if label], [*self._notes, *notes])

    def stated_modality(self) -> Modality:
        """Return what the settings say, or else all lines together."""
        columns = self.known_columns
        if self.modality or not columns.modality:
            return self.modality
        return stated_modality((line for line in self.lines() if LEFT_OUT not in line), columns)

    def gather(self, dataset: Path) -> list[LedgerRow]:
        """Copy the images into the store; return one row a line. Raises UserError."""
        self._listed.clear()
        lines = self.lines()
        if all(AT in line for line in lines):
            raise UserError(f"{self.table} has no rows; give a table with one row for each image.")
        rows = [self._row(line, dataset) for line in lines]
        detail = f"{self.table.name} has no line for it"
        return rows + [
            self.stored(dataset, name, "", b"", status="no-line", detail=detail)
            for name in self._unlisted(lines)
        ]

    def _row(self, line: dict[str, Any], dataset: Path) -> LedgerRow:
        file, columns = line.get(AT) or self.file_of(line), self.known_columns
        label = cell(line.get(columns.label))
        status, detail, data = (*line[LEFT_OUT], b"") if LEFT_OUT in line else self._read(file)
        if not label and LEFT_OUT not in line:
            status, detail = NO_LABEL
        row = self.stored(
            dataset, file, label, data, status=status, detail=detail, **self.known(line)
        )
        origin = cell(line.get(columns.origin))
        origin = "" if is_placeholder(origin) else origin
        host = urlsplit(origin).netloc if "://" in origin else origin
        return replace(row, source=f"{row.source}{FROM}{host}") if host else row

    def _unlisted(self, lines: Sequence[dict[str, Any]]) -> list[str]:
        """Return the files that look like images, beside files of the table and not in it."""
        root = Path(os.path.realpath(self.root))
        lines = [line for line in lines if AT not in line]
        named = {Path(name) for line in lines for name in self.files_of(line)}
        folders = sorted({name.parent for name in named})
        packed = [
            name
            for folder in folders
            for name in self._archives().images(folder.as_posix())
            if Path(name) not in named
        ]
        return packed + [
            (folder / entry.name).as_posix()
            for folder in folders
            if _is_there(root / folder)
            and Path(os.path.realpath(root / folder)).is_relative_to(root)
            and (root / folder).is_dir()
            for entry in visible(root / folder)
            if folder / entry.name not in named and look_at(entry, "", root).status == "stored"
        ]

    def _archives(self) -> ArchiveFiles:
        if self._packed is None:
            self._packed = ArchiveFiles(self.root)
        return self._packed

    def _has(self, name: str) -> bool:
        """Tell whether there is a file; each folder is listed once, which many misses need."""
        folder, _, last = name.rpartition("/")
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(self.root / folder))  # noqa: PTH208
            except (OSError, ValueError):
                self._listed[folder] = frozenset()
        if last in self._listed[folder] or last in ("", ".", ".."):
            return _is_there(self.root / name)
        return self._archives().find(name) is not None

    def _read(self, name: str) -> tuple[str, str, bytes]:
        """Return status, detail and bytes of one file; only files below `root`."""
        root = Path(os.path.realpath(self.root))
        file = Path(os.path.realpath(root / name)) if "\0" not in name else root
        if packed := self._archives().find(name):
            return self._unpacked(packed)
        if root not in file.parents:
            return "link-refused", "the path leads out of the table's folder", b""
        try:
            if file.exists() and not file.is_file():
                return "unreadable", "it is no file", b""  # a named pipe would wait for ever
            with file.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except OSError as error:
            return "unreadable", error.strerror or type(error).__name__, b""
        return self._judged(data)

    def _unpacked(self, opened: Callable[[], IO[bytes]]) -> tuple[str, str, bytes]:
        try:
            with opened() as stream:
                return self._judged(stream.read(MAX_BYTES + 1))
        except DAMAGED as error:
            return "unreadable", f"its archive is damaged ({' '.join(str(error).split())})", b""

    @staticmethod
    def _judged(data: bytes) -> tuple[str, str, bytes]:
        if image_suffix(data[:16]) is None:
            return *unusable(data[:HEAD]), b""
        if len(data) > MAX_BYTES:
            return "too-large", f"it has more than {MAX_BYTES} bytes", b""
        return "stored", "", data


_SKETCH = 4096
_Pattern = Annotated[str, Field(min_length=1, pattern=r"^([^{}]|\{(:0\d)?\})*$")]


class FilesSource(TableShape, TableOfFiles):
    """Images beside a table, as `skindx casebook export` writes it.

    Files of the same folders that look like images and stand in no line become issues.
    """

    kind: Literal["files"]
    columns: FileColumns = FileColumns()
    or_paths: tuple[Path, ...] = Field((), exclude_if=lambda paths: not paths)
    """Where else the table may be; the first that is there counts."""
    files: _Pattern | Annotated[tuple[_Pattern, ...], Field(min_length=1)] = Field(
        "{}", exclude_if=lambda files: files == "{}"
    )
    """Where a line's file is: a folder, or a pattern with {} for its cell, such as images/{}.jpg,
    {:04} for a number as 0007, * for any folder; of several the first that leads to a file counts,
    and the others may hold copies of it."""

    files_in: Path | None = Field(None, exclude_if=lambda folder: folder is None)
    """The folder that `files` is relative to, and out of which none leads; null: the table's."""
    images: tuple[ImageColumn, ...] = Field((), exclude_if=lambda images: not images)
    """Several columns of a row that name its images, such as a close-up and a dermoscopic one;
    `columns.file` is not read then, and the images of a row stay together."""

    """The patterns of files, each * replaced by folders that are there."""

    @property
    def name(self) -> str:
        return f"files:{self.table.name}"

    def stated_modality(self) -> Modality:
        """Return what the settings say of the source, or of all columns of images."""
        kinds = {image.modality for image in self.images}
        if self.modality or not self.images or "" in kinds:
            return super().stated_modality()
        return kinds.pop() if len(kinds) == 1 else "mixed"

    # Kept until the table is read again: each asks the disk, and a large table asks for them often.
    @cached_property
    def table(self) -> Path:
        return first_there(self.path, self.or_paths)

    @cached_property
    def root(self) -> Path:
        folder = self.files_in or self.table.parent
        archive = archive_above(folder)
        return archive.parent if archive else folder

    @cached_property
    def _within(self) -> str:
        """Where in an archive files are, which is then the beginning of each path."""
        folder = self.files_in or self.table.parent
        return f"{folder.relative_to(self.root).as_posix()}/" if archive_above(folder) else ""

    @property
    def known_columns(self) -> FileColumns:
        return self.columns

    def lines(self) -> list[dict[str, Any]]:
        """Read the table. Raises UserError, also where not one of its files is there."""
        self._listed.clear()
        for kept in ("table", "root", "_within", "_patterns"):
            self.__dict__.pop(kept, None)
        self._archives().missing.clear()
        if self.or_paths and not is_there(self.table):
            places = ", ".join(dict.fromkeys(map(str, (self.path, *self.or_paths))))
            raise UserError(
                f"no table was found (looked for {places}); download the table, or set `path` in "
                "the recipe to it."
            )
        lines = self._settled()
        taken = [line for line in lines if LEFT_OUT not in line]
        if len(self._patterns) > 1 and taken and not any(map(self._found, taken)):
            places = ", ".join(self._patterns)
            packed = sorted(path.name for path in self.root.glob("*.zip"))
            step = f"unzip {' and '.join(packed)} there" if packed else "put the images there"
            raise UserError(
                f"{self.table} names {len(taken):,} images, but none of them is at {places} in its "
                f"folder; {step}, or change `files` in the recipe."
            )
        if len(self._patterns) > 1:
            self._compare_places(taken)
        return lines

    def _compare_places(self, lines: Sequence[dict[str, Any]]) -> None:
        """Leave out, or refuse, an image whose file is in two places with other bytes."""
        for line in lines:
            places = [one for one in self.files_of(line) if self._has(one)]
            if len(places) > 1 and len({self._sketch(one) for one in places}) > 1:
                said = f"{places[0]} and {places[1]} are two files of one name with other contents"
                if self.on_conflict != "list":
                    raise UserError(
                        f"{self.table}: {said}; change `files` in the recipe, or {LISTED}."
                    )
                line[LEFT_OUT] = ("conflict", said)

    def _sketch(self, name: str) -> tuple[int, bytes]:
        """Return the size of a file and its first bytes, which two photographs hardly share."""
        try:
            with (self.root / name).open("rb") as file:
                return os.fstat(file.fileno()).st_size, file.read(_SKETCH)
        except OSError:
            data = self._read(name)[2]
            return len(data), data[:_SKETCH]

    def _settled(self) -> list[dict[str, Any]]:
        """Return the table's lines, a file once; those that could not be read come last."""
        log = TableLog()
        lines = shaped_lines(
            self.table,
            self.columns,
            self,
            log,
            label=self.columns.label,
            images=self.images,
            file=self.columns.file,
        )
        self._notes = log.all_notes(self.table)
        file, group = self.columns.file, self.columns.group
        if lines and group and self.columns.may_lack("group") and group not in log.names:
            self._notes.append(
                f"{self.table} has no column {group!r}, so that a split may divide the images of a "
                'person; name the column in columns.group, or write group: "".'
            )
        taken = [line for line in lines if LEFT_OUT not in line]
        counts = Counter(_plain_path(line.get(file)) for line in taken)
        several: dict[str, list[dict[str, Any]]] = {
            name: [] for name, count in counts.items() if count > 1 and name
        }
        for line in taken:
            if (name := _plain_path(line.get(file))) in several:
                several[name].append(line)
        for name, same in several.items():
            if torn := _differing(same, file):
                if self.on_conflict != "list":
                    raise UserError(
                        f"{self.table} names {name!r} {len(same)} times with different values "
                        f"({torn}); correct the table, or {LISTED}."
                    )
                for line in same:
                    line[LEFT_OUT] = ("conflict", f"{self.table.name} says of it {torn}")
        repeats = {id(line) for same in several.values() for line in same[1:]}
        if repeats:
            what = counted(len(repeats), "line")
            self._notes.append(f"{self.table}: {what} repeated the file of another and add none.")
        return [line for line in lines if id(line) not in repeats] + [
            {AT: f"{self.table.name}#{where}", LEFT_OUT: ("odd-line", why)}
            for where, why in log.dropped
        ]

    @cached_property
    def _patterns(self) -> tuple[str, ...]:
        given = (self.files,) if isinstance(self.files, str) else self.files
        places = (expanded(self.root, f"{self._within}{pattern}") for pattern in given)
        return tuple(one for several in places for one in several)

    def files_of(self, line: Mapping[str, Any]) -> list[str]:
        file = super().file_of(line)
        return [filled(pattern, file) for pattern in self._patterns]

    def _found(self, line: Mapping[str, Any]) -> str:
        return next((one for one in self.files_of(line) if self._has(one)), "")

    def file_of(self, line: Mapping[str, Any]) -> str:
        """Return the path of a line's file, relative to the table."""
        if len(self._patterns) == 1:
            return self.files_of(line)[0]
        # A file that is not there has the name of its cell: no folder is wrongly named.
        file = super().file_of(line)
        name = Path(self._patterns[0]).name
        return self._found(line) or filled(name, file)


def _differing(same: Sequence[dict[str, Any]], file: str) -> str:
    """Say in what lines of one file differ; a placeholder differs from nothing.

    Of lines that agree the first then says what only another one knew.
    """
    first = same[0]
    for other in same[1:]:
        for column, value in other.items():
            if column in (LEFT_OUT, SHOWN_AS, file):
                continue
            if column == ROWS:
                first[ROWS] = "\nrow=".join(filter(None, (first.get(ROWS), value)))
            elif is_placeholder(cell(first.get(column))):
                first[column] = value
            elif not is_placeholder(cell(value)) and not same_value(first[column], value):
                return f"{column}: {cell(first[column])[:60]!r} and {cell(value)[:60]!r}"
    return ""


def _plain_path(value: object) -> str:
    """Return a cell's path as it is compared: a.jpg and ./a.jpg are one file."""
    text = cell(value).replace("\\", "/")
    return posixpath.normpath(text) if "/" in text else text


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 Path.exists raises for a name that is too long
