"""Workbooks as Excel writes them, made of XML by hand."""

import datetime
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

_TYPE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_RELATIONS = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'


class Formula(str):
    """A formula; `stored` is the value that was computed when it was saved."""

    stored: object = None


def formula(text: str, stored: object) -> Formula:
    made = Formula(text)
    made.stored = stored
    return made


def write_workbook(
    path: Path, sheets: Mapping[str, Sequence[Sequence[object]]], hidden: Sequence[str] = ()
) -> Path:
    """Write sheets of rows; texts are shared, dates have a date's format."""
    texts: list[str] = []
    parts = {
        f"xl/worksheets/sheet{number}.xml": _sheet(rows, texts)
        for number, rows in enumerate(sheets.values(), 1)
    }
    names = enumerate(sheets, 1)
    states = {name: ' state="hidden"' if name in hidden else "" for name in sheets}
    parts["xl/workbook.xml"] = (
        f"<workbook {_MAIN} {_RELATIONS}><sheets>"
        + "".join(
            f'<sheet name="{escape(name)}" sheetId="{n}" r:id="rId{n}"{states[name]}/>'
            for n, name in names
        )
        + "</sheets></workbook>"
    )
    parts["xl/_rels/workbook.xml.rels"] = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        + "".join(
            f'<Relationship Id="rId{n}" Type="{_TYPE}" Target="worksheets/sheet{n}.xml"/>'
            for n in range(1, len(sheets) + 1)
        )
        + "</Relationships>"
    )
    parts["xl/styles.xml"] = (
        f'<styleSheet {_MAIN}><numFmts><numFmt numFmtId="164" formatCode="dd\\.mm\\.yyyy"/>'
        '</numFmts><cellXfs><xf numFmtId="0"/><xf numFmtId="164"/></cellXfs></styleSheet>'
    )
    shared = "".join(f"<si><t>{escape(text)}</t></si>" for text in texts)
    parts["xl/sharedStrings.xml"] = f"<sst {_MAIN}>{shared}</sst>"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, xml in parts.items():
            archive.writestr(name, _HEAD + xml)
    path.write_bytes(out.getvalue())
    return path


def _sheet(rows: Sequence[Sequence[object]], texts: list[str]) -> str:
    lines = []
    for number, row in enumerate(rows, 1):
        cells = "".join(
            _cell(f"{chr(65 + at)}{number}", value, texts)
            for at, value in enumerate(row)
            if value is not None
        )
        lines.append(f'<row r="{number}">{cells}</row>')
    return f"<worksheet {_MAIN}><sheetData>{''.join(lines)}</sheetData></worksheet>"


def _cell(at: str, value: object, texts: list[str]) -> str:
    if isinstance(value, Formula):
        stored = "" if value.stored is None else f"<v>{escape(str(value.stored))}</v>"
        kind = ' t="str"' if isinstance(value.stored, str) else ""
        return f'<c r="{at}"{kind}><f>{escape(value)}</f>{stored}</c>'
    if isinstance(value, bool):
        return f'<c r="{at}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, datetime.date):
        days = (value - datetime.date(1899, 12, 30)).days
        return f'<c r="{at}" s="1"><v>{days}</v></c>'
    if isinstance(value, str):
        texts.append(value)
        return f'<c r="{at}" t="s"><v>{len(texts) - 1}</v></c>'
    return f'<c r="{at}"><v>{value}</v></c>'
