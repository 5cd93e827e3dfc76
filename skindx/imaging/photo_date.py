"""When a photo was taken, as its file says: EXIF's DateTimeOriginal, or dates of a DICOM header.

Read from the file's bytes, since what is decoded and kept has no metadata. The date is a fact about
a person: it stands in the answer to who sent the photo, in a case that is kept with consent, and in
no log.
"""

import re
import struct
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Literal

from skindx.core.errors import UserError
from skindx.imaging.dicom_facts import DicomFacts

FIRST = date(1990, 1, 1)
"""No digital photo is older; a camera whose clock was never set names 1970 or 1980."""
_HEAD = 1 << 20
"""Bytes in which EXIF is looked for."""
_BLOCK = 64 << 10
"""Bytes of EXIF that are read, as many as a JPEG can hold."""
_ENTRIES = 500
"""Entries of a folder that are looked through."""
_EXIF_FOLDER, _TAKEN, _OFFSET = 0x8769, 0x9003, 0x9011
_STARTS = (b"Exif\0\0", b"eXIf", b"EXIF")
"""Bytes before the TIFF header in JPEG and HEIC, in PNG, and in WebP with a length between."""
_TIFF = (b"II*\0", b"MM\0*")


def exif_date(data: bytes) -> str:
    """Return when EXIF says that a photo was taken; "" where it does not.

    A day, such as 2026-05-01; where the offset from UTC is known the time too, in ISO 8601.
    """
    block = _exif_block(data[:_HEAD])
    order = "<" if block[:2] == b"II" else ">"
    # Read by hand: a library would read every entry, and a hostile file has many large ones.
    with suppress(struct.error, ValueError):
        (first,) = struct.unpack_from(f"{order}I", block, 4)
        (folder,) = struct.unpack(f"{order}I", _value(block, order, first, _EXIF_FOLDER))
        text = _value(block, order, folder, _TAKEN).decode("ascii", "replace")
        taken = datetime.strptime(text.strip("\0 "), "%Y:%m:%d %H:%M:%S")
        offset = _value(block, order, folder, _OFFSET).decode("ascii", "replace").strip("\0 ")
        if re.fullmatch(r"[+-](?:0\d|1[0-4]):[0-5]\d", offset):
            return f"{taken.isoformat()}{offset}"
        return taken.date().isoformat()
    return ""


def file_date(data: bytes, facts: DicomFacts | None = None) -> str:
    """Return when a photo was taken, by its DICOM header or its EXIF; "" where neither says."""
    if facts is None:
        return exif_date(data)
    for text in (facts.identity.acquisition_date, facts.identity.study_date):
        with suppress(ValueError):
            if len(text) == 8:
                return date.fromisoformat(text).isoformat()
    return ""


def day_of(taken: str) -> date | None:
    """Return the day of a date as `exif_date` gives it; None for no date."""
    try:
        return date.fromisoformat(taken[:10])
    except ValueError:
        return None


def unbelieved(day: date) -> Literal["", "future", "old"]:
    """Return why no photo can be of this day; "" for a possible one."""
    # Somewhere it is tomorrow already.
    if day > date.today() + timedelta(days=1):
        return "future"
    return "old" if day < FIRST else ""


def checked_day(text: str) -> str:
    """Return a day that a person gave, in ISO 8601; "" for none. Raises UserError."""
    plain = text.strip()
    if not plain:
        return ""
    day = day_of(plain) if len(plain) == 10 else None
    if day is None:
        raise UserError(
            f"{plain[:20]!r} is not a date; write it like 2026-05-01, or leave it empty."
        )
    if doubt := unbelieved(day):
        why = "lies in the future" if doubt == "future" else f"is before {FIRST.year}"
        raise UserError(
            f"the date of the photos, {day}, {why}; correct the date, or leave it empty."
        )
    return day.isoformat()


def _exif_block(head: bytes) -> bytes:
    for start in _STARTS:
        at = head.find(start)
        while at >= 0:
            after = head[at + len(start) : at + len(start) + 16]
            places = [after.find(header) for header in _TIFF]
            if found := [place for place in places if place >= 0]:
                begin = at + len(start) + min(found)
                return head[begin : begin + _BLOCK]
            at = head.find(start, at + 1)
    return b""


def _value(block: bytes, order: str, folder: int, tag: int) -> bytes:
    """Return the bytes of a short entry of a TIFF folder; b"" where there is none.

    Raises struct.error where the block ends before.
    """
    (count,) = struct.unpack_from(f"{order}H", block, folder)
    for number in range(min(count, _ENTRIES)):
        at = folder + 2 + 12 * number
        key, kind, length = struct.unpack_from(f"{order}HHI", block, at)
        if key == tag:
            size = length * {2: 1, 4: 4}.get(kind, 0)
            (place,) = struct.unpack_from(f"{order}I", block, at + 8)
            return (
                block[at + 8 : at + 8 + size] if size <= 4 else block[place : place + min(size, 32)]
            )
    return b""
