"""A table of URLs as a source: each line names an image on the web and what is known of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.data.ledger import LedgerRow
from skindx.data.origin import Modality
from skindx.data.sources.columns import Columns, stated_modality
from skindx.data.sources.image_source import SourcePreview, WebSource
from skindx.data.tables.cells import cell
from skindx.data.tables.fields import LEFT_OUT, LISTED, TableLog
from skindx.data.tables.shape import TableShape, shaped_lines


class TableColumns(Columns):
    """The columns of a table of URLs; `key` names the rows that have no URL."""

    url: str = Field("url", min_length=1)
    md5: str = ""
    key: str = ""


class TableSource(TableShape, WebSource):
    """Images whose URLs stand in a table, one line an image.

    With an md5 column an image is stored only if its bytes have that MD5, as the table's makers
    saw them. `licence`, `creator` and `attribution` hold where a line says nothing.
    """

    knows_labels: ClassVar[bool] = True

    kind: Literal["table"]
    path: Path
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 that the table must have; "": any."""
    columns: TableColumns = TableColumns()
    licence: str = ""
    creator: str = ""
    attribution: str = ""
    mirror: dict[str, str] = Field({})
    """Prefixes of URLs and what to fetch instead; the longest matching prefix counts."""

    @property
    def name(self) -> str:
        """The file's name: a table is the same in any folder."""
        return f"table:{self.path.name}"

    def stated_modality(self) -> Modality:
        """Return what the settings say, or else all lines together."""
        if self.modality or not self.columns.modality:
            return self.modality
        return stated_modality(self._lines(TableLog()), self.columns)

    def _lines(self, log: TableLog) -> list[dict[str, Any]]:
        return shaped_lines(self.path, self.columns, self, log, label=self.columns.label)

    def check(self) -> set[str]:
        """Read the table once, and return all addresses that it will ask."""
        if self.sha256 and self.path.is_file() and (is_ := sha256_file(self.path)) != self.sha256:
            raise UserError(
                f"{self.path} is not the file that the recipe expects: its SHA-256 is {is_}, not "
                f"{self.sha256}; replace the file, or set `sha256` in the recipe if you trust it."
            )
        rows = list(self.begin())
        if not rows:
            raise UserError(f"{self.path} has no rows; give a table with one line for each image.")
        if self.on_conflict == "refuse" and (torn := _of_several_labels(rows)):
            raise UserError(
                f"{self.path} gives different labels for {torn[0][:200]}; correct the table, or "
                f"{LISTED}."
            )
        return {self.address(row.url) for row in rows if not row.status}

    def begin(self) -> Iterator[LedgerRow]:
        """Yield a row a line, those without a usable URL with their reason."""
        columns = self.columns
        given = {name: getattr(self, name) for name in ("licence", "creator", "attribution")}
        log = TableLog()
        for number, line in enumerate(self._lines(log), 1):
            key = cell(line.get(columns.key)) or f"row-{number}"
            row = self.row(
                cell(line.get(columns.url)),
                cell(line.get(columns.label)),
                f"{self.path.name}#{key}",
                md5=cell(line.get(columns.md5)).lower(),
                **columns.known(line, **given),
            )
            status, detail = line.get(LEFT_OUT, (row.status, row.detail))
            yield replace(row, status=status, detail=detail)
        for where, why in log.dropped:
            identity = f"{self.path.name}#{where}"
            yield LedgerRow(identity, "", "odd-line", why, source=self.name)

    def preview(self) -> SourcePreview:
        """Return the labels of all lines, and what the reading passed over."""
        log = TableLog()
        lines = [line for line in self._lines(log) if LEFT_OUT not in line]
        labels = [cell(line.get(self.columns.label)) for line in lines]
        notes = log.all_notes(self.path)
        if torn := _of_several_labels(list(self.begin())):
            notes.append(
                f"{self.path}: {counted(len(torn), 'image')} with several labels, such as "
                f"{torn[0][:200]}; no such image is taken, unless the labels are one class."
            )
        notes += [
            f"{self.path}: {len(names)} {what}, such as {', '.join(dict.fromkeys(names[:3]))}."
            for what, names in self.columns.odd_facts(lines).items()
            if names
        ]
        return SourcePreview(labels, notes)

    def address(self, url: str) -> str:
        """Return the URL, or what the mirror has in its place."""
        fitting = [prefix for prefix in self.mirror if url.startswith(prefix)]
        if not fitting:
            return url
        prefix = max(fitting, key=len)
        return self.mirror[prefix] + url[len(prefix) :]

    def barren(self, labels: int, failures: Sequence[str]) -> str:
        """Say that no line came out."""
        return f"{self.path} holds no rows; give a table with one line an image."


def _of_several_labels(rows: Sequence[LedgerRow]) -> list[str]:
    """Return the addresses that lines of a table give several labels."""
    labels: dict[str, set[str]] = {}
    for row in rows:
        if not row.status:
            labels.setdefault(row.url, set()).add(row.label)
    return [url for url, several in labels.items() if len(several) > 1]
