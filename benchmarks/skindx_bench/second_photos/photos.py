"""Photos whose lesions are known: those of a table, one half of its lesions, or painted ones."""

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skindx.core.errors import UserError
from skindx.data.copies.learn.acceptance import second_photo
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint

TABLE, IMAGES = "index.csv", "images"
HALVES = ("tuning", "unseen")


@dataclass(frozen=True)
class Photo:
    """One photo; `share` is that of the lesion in the picture, NaN where nobody has drawn it."""

    name: str
    lesion: str
    label: str
    share: float
    data: bytes


def painted_photos(lesions: int, others: int, seed: int) -> list[Photo]:
    """Paint lesions with a second photo each, and others of one class with one photo."""
    rng = np.random.default_rng(seed)
    photos = []
    for number in range(lesions + others):
        label = CLASSES[number % len(CLASSES)] if number < lesions else CLASSES[0]
        pixels_HW3 = paint(label, number, seed).pixels
        shown = [pixels_HW3, second_photo(pixels_HW3, rng)][: 2 if number < lesions else 1]
        photos += [
            Photo(f"{number}-{at}", str(number), label, float("nan"), encode_jpeg(one, 85))
            for at, one in enumerate(shown)
        ]
    return photos


def photos_of(folder: Path, half: str, lesions: int, others: int, same: Path | None) -> list[Photo]:
    """Return all photos of so many lesions that have several, and of others that have one.

    `folder` has index.csv (image, lesion_id, dx, perhaps mask_area_share) and images/. The hash of
    a lesion's id decides its half and its place in the order; others are of the commonest class.
    `same` names images of one lesion under different ids (image, thing). Raises UserError.
    """
    rows = _rows(folder / TABLE, ("image", "lesion_id", "dx"))
    by_lesion: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        by_lesion[row["lesion_id"]].append(row)
    of_half = sorted(
        (lesion for lesion in by_lesion if HALVES[int(_digest(lesion)[:8], 16) % 2] == half),
        key=_digest,
    )
    several = [lesion for lesion in of_half if len(by_lesion[lesion]) > 1][:lesions]
    labels = [row["dx"] for row in rows]
    common = max(sorted(set(labels)), key=labels.count)
    single = [lesion for lesion in of_half if len(by_lesion[lesion]) == 1]
    single = [lesion for lesion in single if by_lesion[lesion][0]["dx"] == common][:others]
    joined = _joined(rows, same)
    chosen = [row for lesion in (*several, *single) for row in by_lesion[lesion]]
    return [
        Photo(
            row["image"],
            joined.get(row["lesion_id"], row["lesion_id"]),
            row["dx"],
            float(row.get("mask_area_share") or "nan"),
            _read(folder / IMAGES / f"{row['image']}.jpg"),
        )
        for row in chosen
    ]


def _joined(rows: Iterable[dict[str, str]], same: Path | None) -> dict[str, str]:
    """Return the id that stands for each id of a lesion that has several."""
    if same is None:
        return {}
    lesion_of = {row["image"]: row["lesion_id"] for row in rows}
    things: dict[str, str] = {}
    stands: dict[str, str] = {}
    for row in _rows(same, ("image", "thing")):
        lesion = lesion_of.get(row["image"])
        if lesion is not None:
            stands[lesion] = things.setdefault(row["thing"], lesion)
    return stands


def _digest(lesion: str) -> str:
    return hashlib.sha256(lesion.encode()).hexdigest()


def _rows(file: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            for column in columns:
                if column not in (reader.fieldnames or ()):
                    raise UserError(f"{file} has no column {column!r}; give it one.")
            return list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a table ({error}); name another one.") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error}); the table names it.") from None
