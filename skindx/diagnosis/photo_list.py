"""Which photos a folder or a table names, and the facts that a table gives of each person."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.data.sources.columns import (
    SEXES,
    SUFFIXES,
    UNKNOWN,
    age_years,
    cell,
    read_table,
    skin_type,
)
from skindx.diagnosis.case import Patient
from skindx.imaging.image_formats import HEAD, image_suffix, photo_format

FILE = "file"
"""The column of a table, and of the answers, that names a photo."""
FACTS = ("age", "sex", "site", "duration", "skin_type")
_PHOTO_SUFFIXES = (
    ".jpg .jpeg .jpe .jfif .png .webp .heic .heif .avif .tif .tiff .bmp .gif .dcm .dicom"
)
"""A file of such a name has a row in any case; any other only if its bytes are an image."""


@dataclass(frozen=True, slots=True)
class ListedPhoto:
    """One photo, by the name that answers call it: relative to the folder, or as in the table."""

    name: str
    path: Path
    patient: Patient


@dataclass(frozen=True)
class PhotoList:
    """The photos of a folder by their names, or of a table by its rows."""

    source: Path
    photos: Sequence[ListedPhoto]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many entries of a folder are no photos of it, by why."""
    unused: Sequence[str] = ()
    """Columns of a table that say nothing to us."""
    digest: str = ""
    """SHA-256 of a table's bytes; "" for a folder, to which photos may come."""

    @property
    def notes(self) -> list[str]:
        """What was not used, in sentences for a person."""
        notes = []
        if self.left_out:
            counts = ", ".join(f"{why}: {count:,}" for why, count in self.left_out.items())
            notes.append(f"Files left out: {counts}.")
        if self.unused:
            notes.append(f"Columns of {self.source} that were not used: {', '.join(self.unused)}.")
        return notes


def list_photos(source: Path) -> PhotoList:
    """Return the photos of a folder or a table. Raises UserError for one that names none."""
    if source.is_dir():
        listed = _of_folder(source)
    elif source.suffix.lower() in SUFFIXES:
        listed = _of_table(source)
    else:
        absent = "does not exist" if not source.exists() else "is neither a folder nor a table"
        raise UserError(
            f"{source} {absent}; give a folder of photos, or a table "
            f"({', '.join(SUFFIXES)}) whose column `{FILE}` names them."
        )
    if not listed.photos:
        rest = f" ({' '.join(listed.notes)})" if listed.left_out else ""
        raise UserError(f"{source} names no photo{rest.replace('.)', ')')}; give another one.")
    return listed


def _of_folder(folder: Path) -> PhotoList:
    left_out: Counter[str] = Counter()
    nobody = Patient()
    photos = [
        ListedPhoto(os.path.relpath(path, folder), Path(path), nobody)
        for path in _walk(str(folder), left_out)
    ]
    return PhotoList(folder, photos, dict(left_out))


def _walk(folder: str, left_out: Counter[str]) -> Iterator[str]:
    """Yield the photos below a folder; no link is followed, so none is seen twice."""
    try:
        with os.scandir(folder) as opened:
            entries = sorted(opened, key=lambda entry: entry.name)
    except OSError:
        left_out["unreadable folders"] += 1
        return
    for entry in entries:
        if entry.name.startswith((".", "__MACOSX")):
            left_out["hidden"] += 1
        elif entry.is_symlink():
            left_out["links (not followed)"] += 1
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, left_out)
        elif entry.is_file(follow_symlinks=False) and _may_be_photo(entry.path):
            yield entry.path
        else:
            left_out["no images"] += 1


def _may_be_photo(path: str) -> bool:
    if (suffix := Path(path).suffix.lower()) and suffix in _PHOTO_SUFFIXES.split():
        return True
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return True  # its row says that it cannot be read
    return bool(photo_format(head[:16]) or image_suffix(head)) or head[128:132] == b"DICM"


@dataclass
class _TableColumns:
    """What is read of a table: its column of files, and those of facts that it has."""

    wanted: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def check(self, path: Path, existing: object) -> None:
        """Take the columns of a table. Raises UserError for one without files."""
        names = [str(name) for name in existing] if isinstance(existing, list | tuple) else []
        if FILE not in names:
            raise UserError(
                f"{path} has no column {FILE!r}, which names the photos; it has "
                f"{', '.join(names) or 'none'}: name the column {FILE!r}."
            )
        self.wanted = tuple(name for name in (FILE, *FACTS) if name in names)
        self.unused = tuple(name for name in names if name not in self.wanted)


def _of_table(table: Path) -> PhotoList:
    folder = Path(os.path.realpath(table.parent))
    columns = _TableColumns()
    rows: dict[str, int] = {}
    photos: list[ListedPhoto] = []
    for number, line in enumerate(read_table(table, columns), 1):
        where = f"{table}, row {number}"
        name = cell(line.get(FILE))
        real = _inside(folder, name, where)
        if real in rows:
            raise UserError(
                f"{where} names {name}, as row {rows[real]} does; keep one row for a photo."
            )
        rows[real] = number
        photos.append(ListedPhoto(name, Path(real), _patient(line, where)))
    return PhotoList(table, photos, unused=columns.unused, digest=sha256_file(table))


def _inside(folder: Path, name: str, where: str) -> str:
    """Return the file that a table names, links resolved. Raises UserError for one elsewhere."""
    if not name or "\0" in name:
        raise UserError(f"{where} names no photo; fill its column {FILE!r}, or delete the row.")
    real = os.path.realpath(folder / name)
    if not Path(real).is_relative_to(folder):
        raise UserError(
            f"{where} names {name}, which is outside the table's folder; put the table into the "
            "folder that holds all photos."
        )
    if Path(real).exists() and not Path(real).is_file():
        raise UserError(f"{where} names {name}, which is no file; correct the row.")
    return real


def _patient(line: Mapping[str, Any], where: str) -> Patient:
    """Return the facts of a row; an empty cell and `unknown` give none. Raises UserError."""
    given: dict[str, Any] = {}
    for name in FACTS:
        text = " ".join(cell(line.get(name)).split())
        if text.casefold() not in UNKNOWN:
            given[name] = _plain(name, text)
    return Patient.parse(given, where, expand=False) if given else Patient()


def _plain(name: str, text: str) -> object:
    """Return a fact as `Patient` takes it; what names none stays as it is, to be refused."""
    if name == "age":
        age = age_years(text)
        return text if age is None else int(age)
    if name == "skin_type":
        return skin_type(text) or text
    plain = text.casefold()
    return SEXES.get(plain, plain) if name == "sex" else plain
