"""Submission files of public challenges, from the rows of `iter_predictions`.

Columns are those of the challenges' pages (challenge.isic-archive.com/landing/2018/47, /2019 and
/milk10k; kaggle.com/competitions/siim-isic-melanoma-classification) and of their scorer,
`load_csv.py` of github.com/ImageMarkup/isic-challenge-scoring. It wants each image once, every
column, and numbers from 0 to 1 with a decimal point; 0.5 is its threshold.
"""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.data.publish.publish_formats import no_formula
from skindx.taxonomy import normalise

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
                f"--column {text!r} is not CLASS=COLUMN, CLASS= or =COLUMN with a class of "
                f"{', '.join(keys)} and a column of {', '.join(columns)}."
            )
        if key:
            chosen[key] = column
        else:
            zero.add(column)
    for key in keys:
        if chosen[key] is None:
            raise UserError(
                f"the class {key} has no column in {name} ({', '.join(columns)}); give "
                f"--column {key}=COLUMN, or --column {key}= to leave it out."
            )
    for column in columns:
        if column not in chosen.values() and column not in zero:
            raise UserError(
                f"no class of the bundle ({', '.join(keys)}) fills the column {column} of {name}; "
                f"give --column CLASS={column}, or --column ={column} to fill it with 0."
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
            raise UserError(f"{name} takes a photo of one name once, and {named} came twice.")
        values = _values(row, challenge, column_of)
        before = sums.setdefault(named, [0.0] * len(header))
        if values:
            sums[named] = [a + b for a, b in zip(before, values, strict=True)]
        counts[named] = counts.get(named, 0) + bool(values)
    count = len(challenge.columns)
    none = [0.0] * count + [1.0] if challenge.unknown else [1 / max(count, 2)] * count
    with atomic_file(out, 0o600) as temporary, temporary.open("w", newline="") as file:
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
        raise UserError(f"the photo {file!r} has no {what}; give photos by such paths.")
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
