"""What people say of pairs: DATASET/copy_answers.csv, written by the page or by hand."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast, get_args

from skindx.data.blocklist import is_sha256
from skindx.data.copies.records import Pair, pair_of
from skindx.errors import UserError
from skindx.files import write_csv

ANSWERS = "copy_answers.csv"

Said = Literal["same", "different"]
_COLUMNS = ("sha256_a", "sha256_b", "verdict", "by", "when", "note")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person said of two images: that they show the same, or that they do not."""

    verdict: Said
    by: str = ""
    when: str = ""
    """UTC, ISO 8601."""
    note: str = ""


def read_answers(dataset: Path) -> dict[Pair, Answer]:
    """Read a dataset folder's answers; the last row of a pair counts. Raises UserError."""
    path = dataset / ANSWERS
    if not path.exists():
        return {}
    answers: dict[Pair, Answer] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS[:3] if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(
                    f"{path} has no column {missing[0]}; its first line names "
                    f"{', '.join(_COLUMNS[:3])}."
                )
            for row in reader:
                pair, answer = _read(row, f"{path}, line {reader.line_num}")
                answers[pair] = answer
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV ({error}); correct it.") from None
    return answers


def said_same(answers: Mapping[Pair, Answer]) -> dict[Pair, bool]:
    """Return for each pair whether a person called it the same."""
    return {pair: answer.verdict == "same" for pair, answer in answers.items()}


def write_answer(dataset: Path, one: str, other: str, said: Said, by: str = "") -> None:
    """Write what a person says of a pair, atomically."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    put_answer(dataset, pair_of(one, other), Answer(said, by, when))


def put_answer(dataset: Path, pair: Pair, answer: Answer | None) -> None:
    """Give a pair this answer, or none, atomically."""
    answers = read_answers(dataset)
    answers.pop(pair, None)
    if answer:
        answers[pair] = answer
    rows = ((*pair, a.verdict, a.by, a.when, a.note) for pair, a in answers.items())
    write_csv(dataset / ANSWERS, _COLUMNS, rows)


def _read(row: Mapping[str, str | None], where: str) -> tuple[Pair, Answer]:
    one, other = ((row[name] or "").strip().lower() for name in _COLUMNS[:2])
    for sha256 in (one, other):
        if not is_sha256(sha256):
            raise UserError(f"{where}: {sha256[:70]!r} is no whole SHA-256 of 64 digits.")
    if one == other:
        raise UserError(f"{where}: a pair has two images, and this is one.")
    said = (row["verdict"] or "").strip()
    if said not in get_args(Said):
        raise UserError(f"{where}: the verdict {said!r} is neither same nor different; correct it.")
    by, when, note = (row.get(name) or "" for name in _COLUMNS[3:])
    return pair_of(one, other), Answer(cast(Said, said), by, when, note)
