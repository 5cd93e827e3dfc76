"""A table of images on this disk as a source: each line names a file and what is known of it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from skindx.core.errors import UserError
from skindx.data.ledger import FROM, LedgerRow
from skindx.data.origin import Modality
from skindx.data.sources.columns import OLDEST, Columns, cell, read_table, stated_modality
from skindx.data.sources.folder import MAX_BYTES, look_at, visible
from skindx.data.sources.image_source import NO_LABEL, LocalSource, SourcePreview
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


class FilesSource(LocalSource):
    """Images beside a table (CSV, JSON lines, Parquet), as `skindx casebook export` writes.

    Files of the same folders that look like images and stand in no line become issues.
    """

    kind: Literal["files"]
    path: Path
    columns: FileColumns = FileColumns()
    files: str = Field("{}", pattern=r"^[^{}]*\{\}[^{}]*$", exclude_if=lambda files: files == "{}")
    """Where a line's file is, with {} for its cell, such as images/{}.jpg."""
    licence: str = Field("", exclude_if=lambda text: not text)
    creator: str = Field("", exclude_if=lambda text: not text)
    attribution: str = Field("", exclude_if=lambda text: not text)
    """Of images whose line says nothing."""

    knows_labels: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The table's name."""
        return f"files:{self.path.name}"

    def preview(self) -> SourcePreview:
        """Return the labels of all lines, and what is odd in the table. Raises UserError."""
        lines = self._lines()
        labels = [cell(line.get(self.columns.label)) for line in lines]
        files = list(map(self._file, lines))
        odd = {
            "of its lines name files that are not there": [
                file for file in files if not _is_there(self.path.parent / file)
            ],
            "files beside it stand in no line of it and are left out": self._unlisted(lines),
            f"ages are no years from 0 to {OLDEST} and count as unknown": (
                self.columns.odd_ages(lines)
            ),
        }
        notes = [
            f"{self.path}: {len(names)} {what}, such as {', '.join(dict.fromkeys(names[:3]))}."
            for what, names in odd.items()
            if names
        ]
        return SourcePreview([label for label in labels if label], notes)

    def stated_modality(self) -> Modality:
        """Return what the settings say, or else all lines together."""
        if self.modality or not self.columns.modality:
            return self.modality
        return stated_modality(read_table(self.path, self.columns), self.columns)

    def gather(self, dataset: Path) -> list[LedgerRow]:
        """Copy the images into the store; return one row a line. Raises UserError."""
        lines = self._lines()
        if not lines:
            raise UserError(f"{self.path} holds no rows; give a table with one line an image.")
        rows = [self._row(line, dataset) for line in lines]
        detail = f"{self.path.name} has no line for it"
        return rows + [
            self.stored(dataset, name, "", b"", status="no-line", detail=detail)
            for name in self._unlisted(lines)
        ]

    def _lines(self) -> list[dict[str, Any]]:
        return list(read_table(self.path, self.columns))

    def _row(self, line: dict[str, Any], dataset: Path) -> LedgerRow:
        file = self._file(line)
        label = cell(line.get(self.columns.label))
        status, detail, data = self._read(file)
        if not label:
            status, detail = NO_LABEL
        given = {name: getattr(self, name) for name in ("licence", "creator", "attribution")}
        known = self.columns.known(line, **given)
        row = self.stored(dataset, file, label, data, status=status, detail=detail, **known)
        origin = cell(line.get(self.columns.origin))
        host = urlsplit(origin).netloc if "://" in origin else origin
        return replace(row, source=f"{row.source}{FROM}{host}") if host else row

    def _file(self, line: dict[str, Any]) -> str:
        """Return the path of a line's file, relative to the table."""
        return self.files.replace("{}", cell(line.get(self.columns.file)))

    def _unlisted(self, lines: Sequence[dict[str, Any]]) -> list[str]:
        """Return the files that look like images, beside files of the table and not in it."""
        root = Path(os.path.realpath(self.path.parent))
        named = {Path(name) for name in map(self._file, lines)}
        return [
            (folder / entry.name).as_posix()
            for folder in sorted({name.parent for name in named})
            if _is_there(root / folder)
            and Path(os.path.realpath(root / folder)).is_relative_to(root)
            for entry in visible(root / folder)
            if folder / entry.name not in named and look_at(entry, "", root).status == "stored"
        ]

    def _read(self, name: str) -> tuple[str, str, bytes]:
        """Return status, detail and bytes of one file; only files below the table's folder."""
        root = Path(os.path.realpath(self.path.parent))
        file = Path(os.path.realpath(root / name)) if "\0" not in name else root
        if root not in file.parents:
            return "link-refused", "the path leads out of the table's folder", b""
        try:
            if file.exists() and not file.is_file():
                return "unreadable", "it is no file", b""  # a named pipe would wait for ever
            with file.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except OSError as error:
            return "unreadable", error.strerror or type(error).__name__, b""
        if image_suffix(data[:16]) is None:
            return *unusable(data[:HEAD]), b""
        if len(data) > MAX_BYTES:
            return "too-large", f"it has more than {MAX_BYTES} bytes", b""
        return "stored", "", data


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 Path.exists raises for a name that is too long
