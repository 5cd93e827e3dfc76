"""Submission files of public challenges, from the rows of `iter_predictions`.

Columns are those of the challenges' pages and of their scorer, `load_csv.py` of
github.com/ImageMarkup/isic-challenge-scoring. It wants each image once, every column, and numbers
from 0 to 1 with a decimal point; 0.5 is its threshold.
"""

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.data.publish.publish_formats import no_formula
from skindx.taxonomy import normalise

ChallengeName = Literal["isic2018", "isic2019", "isic2020", "milk10k"]

_MELANOMA = "melanoma; malignant melanoma; melanoma in situ; lentigo maligna melanoma"
_NEVUS = (
    "nevus; melanocytic nevus; compound nevus; congenital nevus; dysplastic nevus; blue nevus; "
    "halo nevus; intradermal nevus"
)
_KERATOSIS = (
    "benign keratosis; pigmented benign keratosis; seborrheic keratosis; solar lentigo; "
    "lichen planus like keratosis"
)
_ACTINIC = "actinic keratosis; actinic solar damage actinic keratosis"
_IN_SITU = (
    "bowen disease; squamous cell carcinoma in situ; bowen disease squamous cell carcinoma in situ"
)
_BOTH = f"actinic keratosis bowen; {_ACTINIC}; {_IN_SITU}"
_SQUAMOUS = "squamous cell carcinoma; squamous cell carcinoma scc; keratoacanthoma"
_VASCULAR = "vascular lesion; hemangioma; angiokeratoma; pyogenic granuloma"
_BASAL, _FIBROMA = "basal cell carcinoma", "dermatofibroma"


@dataclass(frozen=True, slots=True)
class Challenge:
    """The columns of one challenge's file."""

    page: str
    """Where the challenge says so."""
    row: str
    """The column that names an image, or a lesion."""
    columns: Mapping[str, str]
    """Column -> keys of classes that it holds, in the file's order; its own name is one, too."""
    unknown: str = ""
    """The column for photos of none of the classes."""
    by_lesion: bool = False
    """A row is a lesion, which is the folder of its photos."""


CHALLENGES: Mapping[ChallengeName, Challenge] = {
    "isic2018": Challenge(
        "https://challenge.isic-archive.com/landing/2018/47",
        "image",
        {
            "MEL": _MELANOMA,
            "NV": _NEVUS,
            "BCC": _BASAL,
            "AKIEC": _BOTH,
            "BKL": _KERATOSIS,
            "DF": _FIBROMA,
            "VASC": _VASCULAR,
        },
    ),
    "isic2019": Challenge(
        "https://challenge.isic-archive.com/landing/2019",
        "image",
        {
            "MEL": _MELANOMA,
            "NV": _NEVUS,
            "BCC": _BASAL,
            "AK": _ACTINIC,
            "BKL": _KERATOSIS,
            "DF": _FIBROMA,
            "VASC": _VASCULAR,
            "SCC": f"{_SQUAMOUS}; {_IN_SITU}",
        },
        unknown="UNK",
    ),
    "isic2020": Challenge(
        "https://www.kaggle.com/competitions/siim-isic-melanoma-classification",
        "image_name",
        {"target": _MELANOMA},
    ),
    "milk10k": Challenge(
        "https://challenge.isic-archive.com/landing/milk10k",
        "lesion_id",
        {
            "AKIEC": _BOTH,
            "BCC": _BASAL,
            "BEN_OTH": "other benign proliferations",
            "BKL": _KERATOSIS,
            "DF": _FIBROMA,
            "INF": "inflammatory and infectious conditions",
            "MAL_OTH": "other malignant proliferations",
            "MEL": _MELANOMA,
            "NV": _NEVUS,
            "SCCKA": _SQUAMOUS,
            "VASC": f"{_VASCULAR}; vascular lesions and hemorrhage",
        },
        by_lesion=True,
    ),
}


@dataclass(frozen=True, slots=True)
class SubmissionCounts:
    """What a submission file holds."""

    rows: int
    undecided: tuple[str, ...]
    """Rows without any answer: all columns alike, or UNK where the challenge has it."""

    @property
    def text(self) -> str:
        """The counts as a sentence."""
        named = f", such as {', '.join(self.undecided[:3])}" if self.undecided else ""
        return f"{self.rows} rows; {len(self.undecided)} of them without an answer{named}."


def columns_of(
    name: ChallengeName, keys: Iterable[str], given: Iterable[str] = ()
) -> dict[str, str]:
    """Return the column of each class, "" for one that is left out.

    `given` are texts CLASS=COLUMN, CLASS= for a class without a column, =COLUMN for a column that
    is 0. Raises UserError for a class without a column, and for a column without a class.
    """
    challenge, keys = CHALLENGES[name], list(keys)
    known = {
        normalise(each): column
        for column, names in challenge.columns.items()
        for each in (column, *names.split("; "))
    }
    single = len(challenge.columns) == 1
    chosen = {key: known.get(normalise(key), "" if single else None) for key in keys}
    zero: set[str] = set()
    for text in given:
        key, sign, column = text.partition("=")
        if not sign or (key and key not in chosen) or (column and column not in challenge.columns):
            raise UserError(
                f"--column {text!r} is not CLASS=COLUMN, CLASS= or =COLUMN with a class of "
                f"{', '.join(keys)} and a column of {', '.join(challenge.columns)}."
            )
        if key:
            chosen[key] = column
        else:
            zero.add(column)
    for key in keys:
        if chosen[key] is None:
            raise UserError(
                f"the class {key} has no column in {name} ({', '.join(challenge.columns)}); give "
                f"--column {key}=COLUMN, or --column {key}= to leave it out."
            )
    for column in challenge.columns:
        if column not in chosen.values() and column not in zero:
            raise UserError(
                f"no class of the bundle ({', '.join(keys)}) fills the column {column} of {name}; "
                f"give --column CLASS={column}, or --column ={column} to fill it with 0."
            )
    return {key: column or "" for key, column in chosen.items()}


def submission_writer(
    name: ChallengeName, given: Sequence[str], keys: Sequence[str]
) -> Callable[[Path, object, Iterable[Mapping[str, Any]]], SubmissionCounts]:
    """Return what writes the rows of a run over many photos. Raises UserError as `columns_of`."""
    columns_of(name, keys, given)
    return lambda out, _, rows: write_submission(out, name, rows, keys, given)


def write_submission(
    out: Path,
    name: ChallengeName,
    rows: Iterable[Mapping[str, Any]],
    keys: Sequence[str],
    given: Iterable[str] = (),
) -> SubmissionCounts:
    """Write rows of predictions of the classes `keys` as a challenge's CSV, atomically.

    Probabilities of classes that share a column are added; those of classes left out are spread
    over the rest. A row is named by its file without ending, in milk10k by the file's folder, whose
    answered photos are averaged. UNK is 1 for a refused photo, else half of 1 − `familiarity` but
    never more than the likeliest class. Raises UserError for two photos of one name, and as
    `columns_of`.
    """
    challenge, column_of = CHALLENGES[name], columns_of(name, keys, given)
    sums: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for row in rows:
        named = _name(row.get("file"), challenge)
        if named in sums and not challenge.by_lesion:
            raise UserError(f"{name} takes a photo of one name once, and {named} came twice.")
        values = _values(row, challenge, column_of)
        before = sums.setdefault(named, [0.0] * (len(challenge.columns) + bool(challenge.unknown)))
        counts[named] = counts.get(named, 0) + (values is not None)
        if values is not None:
            sums[named] = [a + b for a, b in zip(before, values, strict=True)]
    header = [challenge.row, *challenge.columns, *filter(None, [challenge.unknown])]
    with (
        atomic_file(out, 0o600) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        for named, total in sums.items():
            shares = [each / counts[named] for each in total] if counts[named] else _none(challenge)
            table.writerow([no_formula(named), *(f"{min(max(p, 0.0), 1.0):.9f}" for p in shares)])
    return SubmissionCounts(len(sums), tuple(key for key, count in counts.items() if not count))


def _name(file: object, challenge: Challenge) -> str:
    path = PurePosixPath(os.fsdecode(str(file or "")).replace("\\", "/"))
    named = path.parent.name if challenge.by_lesion else path.stem
    if not named or named == "..":
        what = "folder, which names its lesion" if challenge.by_lesion else "file name"
        raise UserError(f"the photo {str(file or '')!r} has no {what}; give photos by such paths.")
    return named


def _values(
    row: Mapping[str, Any], challenge: Challenge, column_of: Mapping[str, str]
) -> list[float] | None:
    """Return the values of a photo's columns, None for a refused one."""
    if row.get("first") is None:
        return None
    shares = dict.fromkeys(challenge.columns, 0.0)
    left = 1.0
    for key, column in column_of.items():
        probability = float(row[f"probability_{key}"])
        if column:
            shares[column] += probability
        elif len(shares) > 1:
            left -= probability
    if left <= 0:
        return None
    values = [share / left for share in shares.values()]
    if challenge.unknown:
        familiarity = row.get("familiarity")
        strange = 0.0 if familiarity is None else (1 - float(familiarity)) / 2
        values.append(min(strange, max(values)))
    return values


def _none(challenge: Challenge) -> list[float]:
    """Return the values of a row without an answer."""
    count = len(challenge.columns)
    if challenge.unknown:
        return [0.0] * count + [1.0]
    return [1 / count if count > 1 else 0.5] * count
