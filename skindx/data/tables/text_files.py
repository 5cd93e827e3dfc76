"""Text of a table in the encoding that it was saved in, and its separated cells."""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.text import folded_name

_CHUNK = 1 << 20
_NOT_IN_1252 = re.compile(rb"[\x00\x81\x8d\x8f\x90\x9d]")
_UTF8_LETTER = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}")
_HIGH = re.compile(rb"[\x80-\xff]")
_SEPARATORS = ",;\t|"
_SEP_LINE = re.compile(r"sep=(.)\r?\n?")
"""A first line with which Excel is told the separator."""


def encoding_of(path: Path) -> str:
    """Return the encoding of a text: UTF-8 or UTF-16 with or without its mark, or Windows-1252.

    Raises UserError for what is none of them, and for UTF-8 that is damaged.
    """
    with path.open("rb") as file:
        head = file.read(4096)
        if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
            return "utf-32"
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        zeros = [head[at::2].count(0) for at in (0, 1)]
        if len(head) > 3 and max(zeros) > 0.3 * len(head) / 2 and not min(zeros):
            return "utf-16-be" if zeros[0] else "utf-16-le"
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        try:
            while chunk := file.read(_CHUNK):
                decoder.decode(chunk)
                if b"\0" in chunk:
                    raise UserError(
                        f"{path} cannot be read as a table (it has NUL bytes, so it is no text or "
                        "is damaged); save it again as CSV from the program that wrote it."
                    )
            decoder.decode(b"", final=True)
            return "utf-8-sig"
        except UnicodeDecodeError:
            file.seek(0)
    if _is_1252(path):
        return "cp1252"
    raise UserError(
        f"{path} cannot be read as a table (it is not written in UTF-8, UTF-16 or Windows-1252, or "
        "is damaged); save it as `CSV UTF-8` in Excel, or with the encoding UTF-8 in any other "
        "program."
    )


def _is_1252(path: Path) -> bool:
    """Tell whether a text that is no UTF-8 is Windows-1252, and not UTF-8 with damage in it."""
    whole = high = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if _NOT_IN_1252.search(chunk):
                return False
            letters = _UTF8_LETTER.findall(chunk)
            whole += len(letters)
            high += len(_HIGH.findall(chunk)) - sum(map(len, letters))
    return high >= whole


@contextmanager
def open_text(path: Path) -> Iterator[tuple[io.TextIOWrapper, str]]:
    """Open a text in its encoding; yield the file and the encoding's name."""
    encoding = encoding_of(path)
    with path.open(newline="", encoding=encoding) as file:
        try:
            yield file, encoding
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} cannot be read as a table (it is damaged: {error.reason}); save it again "
                "as CSV from the program that wrote it."
            ) from None


def separated(
    file: io.TextIOWrapper, wanted: Sequence[str], *, strict: bool = True
) -> tuple[Iterator[tuple[int, list[str]]], str]:
    """Yield (line, cells) of each row, the header too; and return the separator.

    Where it is `strict`, raises csv.Error for a quotation mark that is never closed, or closed amid
    a cell.
    """
    head = file.readline()
    told = _SEP_LINE.fullmatch(head.lstrip("\ufeff"))
    first = 1 if told else 0
    if told:
        sign = told[1]
    else:
        file.seek(0)
        sign = _separator(head, wanted)

    def rows() -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(file, delimiter=sign, strict=strict)
        for cells in reader:
            yield reader.line_num + first, cells

    return rows(), sign


def _separator(head: str, wanted: Sequence[str]) -> str:
    """Return the separator with which a header has most of the wanted columns, or else most cells.

    Excel writes semicolons where the decimal point is a comma.
    """
    names = set(map(folded_name, wanted))

    def known(sign: str) -> tuple[int, int]:
        try:
            cells = next(csv.reader([head], delimiter=sign), [])
        except csv.Error:
            return 0, 0
        return len(names & set(map(folded_name, cells))), len(cells)

    return max(_SEPARATORS, key=known)
