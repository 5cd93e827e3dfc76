"""The ledger: one row a URL or file, and a reason for everything that did not become an image."""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.data.layout import LEDGER, is_inside

FROM = " @ "
_WAIT_S = 10.0
"""The crawl of a killed run needs a moment to see that its parent is gone."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What became of one image that a source named.

    `status` is "stored", or the reason why not as a fixed short word (dead-link, too-large,
    not-a-picture, robots, private-address …); `detail` says it in a sentence. `path` is relative
    to the dataset folder, `sha256` is of the bytes as they came; both are "" when nothing was
    stored. `group` names the patient, lesion or article where the source knows it; several, one a
    line. `source` may say after FROM where in it the image comes from, such as a host.
    """

    url: str
    label: str
    status: str
    detail: str = ""
    sha256: str = ""
    path: str = ""
    size_bytes: int = 0
    retrieved: str = ""
    source: str = ""
    page_url: str = ""
    licence: str = ""
    creator: str = ""
    attribution: str = ""
    skin_type: int | None = None
    group: str = ""
    md5: str = ""
    """MD5 of the bytes by the source; "" where it gives none. Other bytes are not stored."""
    caption: str = ""
    """The source's text about it: caption, alternative text. May name a person."""
    confirmed_by: str = ""
    """How the source says that the label was confirmed, such as histopathology; "": not at all."""
    age: float | None = None
    sex: str = ""
    site: str = ""
    answers: str = ""
    laterality: str = ""
    modality: str = ""
    patient: str = ""
    study: str = ""
    """Facts about the person and the image, as the manifest has them."""
    split: str = ""
    """Split that the source gives; "": the build assigns it."""


def file_name(url: str) -> str:
    """Return the last part of a URL's or relative path's path, unquoted."""
    path = unquote(urlsplit(url).path) if "://" in url else url
    return PurePosixPath(path).name


def now() -> str:
    """Return the time as the ledger and the block list carry it: UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def held_ledger(dataset: Path) -> Iterator[int]:
    """Hold a dataset folder's ledger for one crawl; yield the descriptor that bears the lock.

    Raises UserError while another process crawls into it.
    """
    (dataset / LEDGER).touch()
    with only_writer(dataset / LEDGER, "crawl", _WAIT_S) as lock:
        yield lock


class LedgerWriter:
    """Appends lines to a dataset folder's ledger; a row is on the disk when `append` returns.

    Beside rows the file holds *notes*, lines with the key "note": what a crawl says about itself
    (progress, a page that failed). They matter to the run that wrote them and are no rows.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def append(self, row: LedgerRow, *, force: bool = True) -> None:
        """Write one row; `force` it to the disk where it took work to know."""
        self._write(dataclasses.asdict(row))
        if force:
            os.fsync(self._file.fileno())

    def extend(self, rows: Iterable[LedgerRow]) -> None:
        """Write many rows and force them to the disk together."""
        for row in rows:
            self._file.write(_line(dataclasses.asdict(row)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def note(self, note: str, **values: Any) -> None:
        """Write one note; losing it in a crash loses no work."""
        self._write({"note": note, **values})

    def _write(self, line: dict[str, Any]) -> None:
        # One write a line: a kill tears the last line at most.
        self._file.write(_line(line))
        self._file.flush()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


@contextmanager
def open_ledger(dataset: Path) -> Iterator[LedgerWriter]:
    """Open the ledger for appending; a last line torn by a kill is cut off first."""
    path = dataset / LEDGER
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(whole_size(dataset))
        yield LedgerWriter(file)


def whole_size(dataset: Path) -> int:
    """Return the ledger's size in bytes up to the end of its last whole line."""
    path = dataset / LEDGER
    if not path.exists():
        return 0
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def read_lines(dataset: Path, start: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines (rows and notes) from byte `start`, and the byte where they end.

    Raises UserError for a line that is no JSON object.
    """
    path = dataset / LEDGER
    if not path.exists():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    data = data[: data.rfind(b"\n") + 1]
    lines = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            where = f"line {number}" if start == 0 else f"line {number} after byte {start}"
            raise UserError(
                f"{path}, {where}, is damaged; delete that line and run the same command again."
            )
        lines.append(value)
    return lines, start + len(data)


def row_of(line: dict[str, Any]) -> LedgerRow | None:
    """Return the row that a ledger line holds, None for a note. Raises UserError."""
    if "note" in line:
        return None
    try:
        row = LedgerRow(**line)
    except TypeError as error:
        raise UserError(f"the ledger is damaged ({error}); delete its line {line!r}.") from None
    if not isinstance(row.path, str) or (row.path and not is_inside(row.path)):
        raise UserError(
            f"the ledger names the file {row.path!r}, which lies outside the dataset and may be "
            "malicious; do not use this dataset."
        )
    return row


def read_ledger(dataset: Path) -> list[LedgerRow]:
    """Return a dataset folder's rows, one a (url, label): the last one written counts.

    A URL that failed for a passing reason (timeout, server error) is tried again by the next run
    and then has a later row. Raises UserError for a damaged ledger.
    """
    rows: dict[tuple[str, str], LedgerRow] = {}
    for line in read_lines(dataset)[0]:
        row = row_of(line)
        if row:
            rows[row.url, row.label] = row
    return list(rows.values())
