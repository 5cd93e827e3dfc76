"""A workbook of Excel (.xlsx): the stored values of one sheet, read as XML under limits.

ECMA-376 part 1, SpreadsheetML. Nothing is computed: a formula gives the value that was stored with
it. Dates are numbers with a date's format and come as ISO text.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from skindx.core.errors import UserError
from skindx.core.machine import how_to_install
from skindx.data.tables.cells import date_text

MOST_BYTES = 512 << 20
"""Bytes of XML that a workbook may unpack to."""
_MOST_COLUMNS = 16_384
_MOST_ELEMENTS = 400_000
"""Most elements of one row, text or list of styles."""
_OLE = b"\xd0\xcf\x11\xe0"
_DATES = {*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)}
"""Number formats that Excel has built in for dates and times."""
_QUOTED = re.compile(r'"[^"]*"|\\.|\[(?!h|m|s)[^\]]*\]', re.IGNORECASE)
_DATE_SIGNS = re.compile("[dmyhs]", re.IGNORECASE)
_REFERENCE = re.compile(r"([A-Z]{1,3})\d+")
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")


@dataclass
class WorkbookSheet:
    """One visible or hidden sheet; `rows` reads it anew."""

    name: str
    hidden: bool
    part: str


@dataclass
class Workbook:
    """An open workbook. `odd` counts cells without a usable value, by what they are."""

    path: Path
    archive: zipfile.ZipFile
    sheets: list[WorkbookSheet] = field(default_factory=list)
    odd: Counter[str] = field(default_factory=Counter)
    _texts: list[str] | None = None
    _dates: set[int] = field(default_factory=set)
    _from_1904: bool = False

    def rows(self, sheet: WorkbookSheet) -> Iterator[tuple[int, list[Any]]]:
        """Yield (row number, cells) of each row that is not empty; None for an empty cell."""
        if self._texts is None:
            self._texts = list(self._shared_texts())
        number = 0
        with self._open(sheet.part) as file:
            for row in _elements(file, "row"):
                number = int(row.get("r") or number + 1)
                cells: list[Any] = []
                for each in row:
                    if _local(each.tag) != "c":
                        continue
                    at = _column(each.get("r")) if each.get("r") else len(cells)
                    if not len(cells) <= at < _MOST_COLUMNS:
                        raise ValueError(f"the cell {each.get('r')!r} is not at a valid place")
                    cells += [None] * (at - len(cells))
                    cells.append(self._value(each))
                if any(value is not None for value in cells):
                    yield number, cells

    def _value(self, each: Any) -> Any:
        kind = each.get("t") or "n"
        parts = {_local(part.tag): part for part in each}
        if kind == "inlineStr":
            return _text(parts["is"]) if "is" in parts else None
        stored = parts["v"].text if "v" in parts else None
        if stored is None:
            self.odd["formulas without a stored value"] += "f" in parts
            return None
        if kind == "e":
            self.odd[f"cells that say {stored}"] += 1
            return None
        if kind == "n":
            return self._number(stored, int(each.get("s") or 0))
        if kind == "b":
            return "True" if stored.strip() == "1" else "False"
        shared = self._texts or ()
        return (shared[int(stored)] if kind == "s" else _unescaped(stored)) or None

    def _number(self, stored: str, style: int) -> Any:
        if style in self._dates:
            return date_text(float(stored), self._from_1904) or float(stored)
        return int(stored) if stored.lstrip("-").isdecimal() else float(stored)

    def _open(self, part: str) -> IO[bytes]:
        return self.archive.open(part)

    def _shared_texts(self) -> Iterator[str]:
        part = "xl/sharedStrings.xml"
        if part in self.archive.namelist():
            with self._open(part) as file:
                for each in _elements(file, "si"):
                    yield _text(each)

    def _read_book(self) -> None:
        targets = {}
        with self._open("xl/_rels/workbook.xml.rels") as file:
            for each in _elements(file, "Relationship"):
                target = each.get("Target") or ""
                whole = target[1:] if target.startswith("/") else str(PurePosixPath("xl", target))
                if (each.get("Type") or "").endswith("/worksheet"):
                    targets[each.get("Id")] = whole
        with self._open("xl/workbook.xml") as file:
            for each in _elements(file, "sheet", "workbookPr"):
                if _local(each.tag) == "workbookPr":
                    self._from_1904 = each.get("date1904") in ("1", "true")
                    continue
                ids = (value for name, value in each.items() if _local(name) == "id")
                part = targets.get(next(ids, ""))
                if part:
                    hidden = (each.get("state") or "visible") != "visible"
                    self.sheets.append(WorkbookSheet(each.get("name") or "", hidden, part))
        if "xl/styles.xml" in self.archive.namelist():
            with self._open("xl/styles.xml") as file:
                self._read_styles(file)

    def _read_styles(self, file: IO[bytes]) -> None:
        formats, dates = {}, set(_DATES)
        for each in _elements(file, "numFmt", "cellXfs"):
            if _local(each.tag) == "numFmt":
                formats[int(each.get("numFmtId") or 0)] = each.get("formatCode") or ""
                continue
            dates |= {
                number
                for number, code in formats.items()
                if _DATE_SIGNS.search(_QUOTED.sub("", code.partition(";")[0]))
            }
            for place, style in enumerate(each):
                if int(style.get("numFmtId") or 0) in dates:
                    self._dates.add(place)


def open_workbook(path: Path) -> Workbook:
    """Open a workbook, whose archive the caller closes. Raises UserError, ValueError, OSError."""
    with path.open("rb") as file:
        if file.read(4) == _OLE:
            raise UserError(
                f"{path} is a workbook with a password or in the old format .xls; save it as "
                ".xlsx without a password."
            )
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise UserError(
            f"{path} is not an .xlsx workbook, so it cannot be read as a table; open it in the "
            "program that wrote it, and save it as .xlsx or CSV."
        ) from None
    try:
        if sum(one.file_size for one in archive.infolist()) > MOST_BYTES:
            raise UserError(
                f"{path} unpacks to more than {MOST_BYTES >> 20} MiB; save its sheet as CSV and "
                "give the CSV file."
            )
        book = Workbook(path, archive)
        book._read_book()
    except BaseException:
        archive.close()
        raise
    return book


def _elements(file: IO[bytes], *names: str) -> Iterator[Any]:
    """Yield the elements of these names as they end; each is emptied after it was seen."""
    try:
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import ParseError, iterparse
    except ImportError:
        raise UserError(
            "reading a workbook needs the package defusedxml, which is not installed; run "
            f"{how_to_install('data')}, or save the sheet as CSV."
        ) from None
    above: list[Any] = []
    within = held = 0
    try:
        for event, element in iterparse(file, events=("start", "end"), forbid_dtd=True):
            named = _local(element.tag) in names
            if event == "start":
                above.append(element)
                within += named
                held += 1
                if held > _MOST_ELEMENTS:
                    raise ValueError("a row of the sheet is too long")
                continue
            above.pop()
            within -= named
            if named:
                yield element
            if not within:  # seen, or nothing that is asked for
                held = 0
                element.clear()
                if above:
                    above[-1].remove(element)
    except (ParseError, DefusedXmlException) as error:
        raise ValueError(f"the XML of the workbook is damaged: {error}") from None


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _column(reference: str) -> int:
    match = _REFERENCE.fullmatch(reference)
    if not match:
        raise ValueError(f"{reference[:20]!r} is no cell")
    number = 0
    for letter in match[1]:
        number = number * 26 + ord(letter) - 64
    return number - 1


def _text(item: Any) -> str:
    """Return plain or rich text, without the readings that stand above Japanese."""
    texts = []
    for part in item:
        if _local(part.tag) == "t":
            texts.append(part.text or "")
        elif _local(part.tag) == "r":
            texts += [inner.text or "" for inner in part if _local(inner.tag) == "t"]
    return _unescaped("".join(texts))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
