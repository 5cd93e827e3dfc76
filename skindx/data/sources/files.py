"""A table of images on this disk as a source: each line names a file and what is known of it."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from skindx.core.errors import UserError
from skindx.data.ledger import LedgerRow
from skindx.data.origin import Modality
from skindx.data.sources.columns import Columns, cell, read_table, stated_modality
from skindx.data.sources.folder import MAX_BYTES
from skindx.data.sources.image_source import NO_LABEL, LocalSource, SourcePreview
from skindx.imaging.image_formats import HEAD, image_suffix, unusable


class FileColumns(Columns):
    """Columns of the table by meaning; `file` is a path relative to the table."""

    file: str = Field("file", min_length=1)
    licence: str = "licence"
    attribution: str = "attribution"
    group: str = "group"
    skin_type: str = "skin_type"


class FilesSource(LocalSource):
    """Images beside a table (CSV, JSON lines, Parquet), as `skindx casebook export` writes."""

    kind: Literal["files"]
    path: Path
    columns: FileColumns = FileColumns()

    @property
    def name(self) -> str:
        """The table's name."""
        return f"files:{self.path.name}"

    def preview(self) -> SourcePreview:
        """Return the labels of all lines. Raises UserError."""
        label = self.columns.label
        return SourcePreview([cell(line.get(label)) for line in self._lines()])

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
        return [self._row(line, dataset) for line in lines]

    def _lines(self) -> list[dict[str, Any]]:
        return list(read_table(self.path, self.columns))

    def _row(self, line: dict[str, Any], dataset: Path) -> LedgerRow:
        file = cell(line.get(self.columns.file))
        label = cell(line.get(self.columns.label))
        status, detail, data = self._read(file)
        if not label:
            status, detail = NO_LABEL
        known = self.columns.known(line)
        return self.stored(dataset, file, label, data, status=status, detail=detail, **known)

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
