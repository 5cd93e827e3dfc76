"""Which photos a folder or a table names, and the facts that a table gives of each person."""

import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from skindx.core.atomic_files import is_clutter, sha256_file
from skindx.core.errors import UserError
from skindx.core.private_files import private_file
from skindx.core.seven_points import QUESTIONS
from skindx.data.placeholders import is_placeholder
from skindx.data.sources.columns import (
    age_years,
    answer,
    sex,
    skin_type,
)
from skindx.data.tables.cells import cell, no_formula
from skindx.data.tables.fields import TableLog
from skindx.data.tables.reader import SUFFIXES, is_table, read_table
from skindx.diagnosis.case import Patient
from skindx.diagnosis.intake import INTAKE
from skindx.imaging.image_formats import HEAD, image_suffix, photo_format
from skindx.taxonomy import normalise

FILE = "file"
"""The column of a table, and of the answers, that names a photo."""
FACTS = tuple(INTAKE)
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
    reading: Sequence[str] = ()
    """What the reader of a table passed over, in sentences."""
    digest: str = ""
    """SHA-256 of a table's bytes; "" for a folder, to which photos may come."""

    @property
    def notes(self) -> list[str]:
        """What was not used, in sentences for a person."""
        notes = list(self.reading)
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
    elif source.suffix and is_table(source):
        listed = _of_table(source)
    else:
        absent = "does not exist" if not source.exists() else "is neither a folder nor a table"
        raise UserError(
            f"{source} {absent}; give a folder of photos, or a table ({', '.join(SUFFIXES)}) "
            f"whose column `{FILE}` names the photos."
        )
    if not listed.photos:
        rest = f" ({' '.join(listed.notes)})" if listed.left_out else ""
        raise UserError(
            f"{source} has no photo{rest.replace('.)', ')')}; give another folder or table."
        )
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
        if entry.name.startswith(".") or is_clutter(entry.name):
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

    wanted: tuple[str, ...] = (FILE, *FACTS)
    unused: tuple[str, ...] = ()
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def check(self, path: Path, existing: object) -> None:
        """Take the columns of a table. Raises UserError for one without files."""
        names = [str(name) for name in existing] if isinstance(existing, list | tuple) else []
        if FILE not in names:
            raise UserError(
                f"{path} has no column `{FILE}` with the names of the photos, but has "
                f"{', '.join(names) or 'none'}; rename the correct column to `{FILE}`."
            )
        self.wanted = tuple(name for name in (FILE, *FACTS) if name in names)
        self.unused = tuple(name for name in names if name not in self.wanted)


def _of_table(table: Path) -> PhotoList:
    folder = Path(os.path.realpath(table.parent))
    columns = _TableColumns()
    rows: dict[str, int] = {}
    log = TableLog()
    photos: list[ListedPhoto] = []
    for number, line in enumerate(read_table(table, columns, log=log), 1):
        where = f"{table}, row {number}"
        name = cell(line.get(FILE))
        real = _inside(folder, name, where)
        if real in rows:
            raise UserError(
                f"{where} names {name}, which row {rows[real]} names too; delete one of these two "
                "rows."
            )
        rows[real] = number
        photos.append(ListedPhoto(name, Path(real), _patient(line, where)))
    notes = log.all_notes(table)
    return PhotoList(table, photos, {}, columns.unused, notes, sha256_file(table))


def _inside(folder: Path, name: str, where: str) -> str:
    """Return the file that a table names, links resolved. Raises UserError for one elsewhere."""
    if not name or "\0" in name:
        raise UserError(f"{where} has no photo name; fill its column {FILE!r}, or delete the row.")
    real = os.path.realpath(folder / name)
    if not Path(real).is_relative_to(folder):
        raise UserError(
            f"{where} names {name}, which is outside the folder of the table; put the table into "
            "the folder of the photos."
        )
    if Path(real).exists() and not Path(real).is_file():
        raise UserError(
            f"{where} names {name}, which is not a file; correct the column `{FILE}` in this row."
        )
    return real


def _patient(line: Mapping[str, Any], where: str) -> Patient:
    """Return the facts of a row; an empty cell and `unknown` give none. Raises UserError."""
    given: dict[str, Any] = {}
    for name in FACTS:
        text = " ".join(cell(line.get(name)).split())
        if not is_placeholder(text):
            given[name] = _plain(name, text)
    return Patient.parse(given, where, expand=False) if given else Patient()


def _plain(name: str, text: str) -> object:
    """Return a fact as `Patient` takes it; what names none stays as it is, to be refused."""
    if name == "age":
        age = age_years(text)
        return text if age is None else int(age)
    if name == "skin_type":
        return skin_type(text) or text
    if name in QUESTIONS:
        return answer(name, [text]) or text
    plain = text.casefold()
    return sex(text) or plain if name == "sex" else plain


ChallengeName = Literal["isic2018", "isic2019", "isic2020", "milk10k"]


@dataclass(frozen=True, slots=True)
class Challenge:
    """The columns of one challenge's file, in its order."""

    row: str
    """Names an image, or a lesion."""
    columns: Sequence[str]
    unknown: str = ""
    """The column for photos of none of the classes."""
    by_lesion: bool = False
    """A row is a lesion, which is the folder of its photos."""


CHALLENGES: Mapping[ChallengeName, Challenge] = {
    "isic2018": Challenge("image", ["MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"]),
    "isic2019": Challenge(
        "image", ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"], unknown="UNK"
    ),
    "isic2020": Challenge("image_name", ["target"]),
    "milk10k": Challenge(
        "lesion_id",
        ["AKIEC", "BCC", "BEN_OTH", "BKL", "DF", "INF", "MAL_OTH", "MEL", "NV", "SCCKA", "VASC"],
        by_lesion=True,
    ),
}

_MELANOMA = "melanoma; malignant melanoma; melanoma in situ; lentigo maligna melanoma"
_ACTINIC = "actinic keratosis; actinic solar damage actinic keratosis"
_IN_SITU = (
    "bowen disease; squamous cell carcinoma in situ; bowen disease squamous cell carcinoma in situ"
)
_SQUAMOUS = "squamous cell carcinoma; squamous cell carcinoma scc; keratoacanthoma"
_CLASSES = {
    "MEL": _MELANOMA,
    "target": _MELANOMA,
    "NV": "nevus; melanocytic nevus; compound nevus; congenital nevus; dysplastic nevus; "
    "blue nevus; halo nevus; intradermal nevus",
    "BCC": "basal cell carcinoma",
    "AK": _ACTINIC,
    "AKIEC": f"actinic keratosis bowen; {_ACTINIC}; {_IN_SITU}",
    "SCC": f"{_SQUAMOUS}; {_IN_SITU}",
    "SCCKA": _SQUAMOUS,
    "BKL": "benign keratosis; pigmented benign keratosis; seborrheic keratosis; solar lentigo; "
    "lichen planus like keratosis",
    "DF": "dermatofibroma",
    "VASC": "vascular lesion; hemangioma; angiokeratoma; pyogenic granuloma",
}
"""Column -> keys of classes that it holds beside its own name."""


def columns_of(
    name: ChallengeName, keys: Iterable[str], given: Iterable[str] = ()
) -> dict[str, str]:
    """Return the column of each class, "" for one that is left out.

    `given` are texts CLASS=COLUMN, CLASS= for a class without a column, =COLUMN for a column that
    is 0. Raises UserError for a class without a column, and for a column without a class.
    """
    columns, keys = CHALLENGES[name].columns, list(keys)
    known = {
        normalise(each): column
        for column in columns
        for each in (column, *_CLASSES.get(column, column).split("; "))
    }
    # The only column of a challenge is for one class against all others.
    chosen = {key: known.get(normalise(key), "" if len(columns) == 1 else None) for key in keys}
    zero: set[str] = set()
    for text in given:
        key, sign, column = text.partition("=")
        if not sign or (key and key not in chosen) or (column and column not in columns):
            raise UserError(
                f"--column {text!r} has the wrong form; write CLASS=COLUMN, CLASS= or =COLUMN "
                f"with a class of {', '.join(keys)} and a column of {', '.join(columns)}."
            )
        if key:
            chosen[key] = column
        else:
            zero.add(column)
    for key in keys:
        if chosen[key] is None:
            raise UserError(
                f"the class {key} has no column in {name} ({', '.join(columns)}); give --column "
                f"{key}=COLUMN, or --column {key}= to omit this class."
            )
    for column in columns:
        if column not in chosen.values() and column not in zero:
            raise UserError(
                f"no class of the bundle ({', '.join(keys)}) matches the column {column} of "
                f"{name}; give --column CLASS={column}, or --column ={column} to fill it with 0."
            )
    return {key: column or "" for key, column in chosen.items()}


def write_submission(
    out: Path, name: ChallengeName, rows: Iterable[Mapping[str, Any]], column_of: Mapping[str, str]
) -> None:
    """Write rows of predictions as a challenge's CSV, atomically; `columns_of` gives `column_of`.

    Probabilities of classes that share a column are added; those of classes left out are spread
    over the rest. A row is named by its file without ending, in milk10k by the file's folder, whose
    answered photos are averaged. A row without an answer has one value in all columns. UNK is 1
    then, else half of 1 − `familiarity` but never more than the likeliest class. Raises UserError
    for two photos of one name.
    """
    challenge = CHALLENGES[name]
    header = [*challenge.columns, *filter(None, [challenge.unknown])]
    sums: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for row in rows:
        named = _name(str(row.get("file") or ""), challenge)
        if named in sums and not challenge.by_lesion:
            raise UserError(f"two photos have the name {named} in {name}; rename one of them.")
        values = _values(row, challenge, column_of)
        before = sums.setdefault(named, [0.0] * len(header))
        if values:
            sums[named] = [a + b for a, b in zip(before, values, strict=True)]
        counts[named] = counts.get(named, 0) + bool(values)
    count = len(challenge.columns)
    none = [0.0] * count + [1.0] if challenge.unknown else [1 / max(count, 2)] * count
    with private_file(out) as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([challenge.row, *header])
        for named, total in sums.items():
            shares = [each / counts[named] for each in total] if counts[named] else none
            table.writerow([no_formula(named), *(f"{min(max(p, 0.0), 1.0):.9f}" for p in shares)])


def _name(file: str, challenge: Challenge) -> str:
    path = PurePosixPath(os.fsencode(file).decode(errors="replace").replace("\\", "/"))
    named = path.parent.name if challenge.by_lesion else path.stem
    if not named or named == "..":
        what = "folder, which names its lesion" if challenge.by_lesion else "file name"
        raise UserError(
            f"the path of the photo {file!r} has no {what}; give photos by paths that have one."
        )
    return named


def _values(
    row: Mapping[str, Any], challenge: Challenge, column_of: Mapping[str, str]
) -> list[float]:
    """Return the values of a photo's columns, none for a refused one."""
    if row.get("first") is None:
        return []
    shares, rest = dict.fromkeys(challenge.columns, 0.0), 1.0
    for key, column in column_of.items():
        probability = float(row[f"probability_{key}"])
        if column:
            shares[column] += probability
        elif len(shares) > 1:
            rest -= probability
    if rest <= 0:
        return []
    values = [share / rest for share in shares.values()]
    if challenge.unknown:
        familiarity = row.get("familiarity")
        strange = 0.0 if familiarity is None else (1 - float(familiarity)) / 2
        values.append(min(strange, max(values)))
    return values
