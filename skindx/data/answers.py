"""People's answers about images or pairs: a CSV file in the dataset folder.

A page writes it, or a person by hand; the next build obeys it.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from skindx.core.atomic_files import write_csv
from skindx.core.errors import UserError
from skindx.data.blocklist import is_sha256

Key = tuple[str, ...]
"""The SHA-256 of the images that an answer is about."""

_NOTES = ("by", "when", "note")


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer, one of the verdicts of its file."""

    verdict: str
    by: str = ""
    when: str = ""
    """UTC, ISO 8601."""
    note: str = ""


def answer_now(verdict: str, by: str) -> Answer:
    """Return an answer that is given at this moment."""
    return Answer(verdict, by, datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True)
class AnswerFile:
    """One kind of question: the columns that name the images, and the two verdicts."""

    name: str
    keys: tuple[str, ...]
    verdicts: tuple[str, str]

    def read(self, dataset: Path) -> dict[Key, Answer]:
        """Read a dataset folder's answers; the last row of a key counts. Raises UserError."""
        path, needed = dataset / self.name, (*self.keys, "verdict")
        if not path.exists():
            return {}
        answers: dict[Key, Answer] = {}
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                missing = [name for name in needed if name not in (reader.fieldnames or ())]
                if missing:
                    raise UserError(
                        f"{path} has no column {missing[0]}; its first line names "
                        f"{', '.join(needed)}."
                    )
                for row in reader:
                    key, answer = self._row(row, f"{path}, line {reader.line_num}")
                    answers[key] = answer
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path} cannot be read as CSV ({error}); correct it.") from None
        return answers

    def put(self, dataset: Path, key: Key, answer: Answer | None) -> None:
        """Give a key this answer, or none, atomically."""
        answers = self.read(dataset)
        answers.pop(key, None)
        if answer:
            answers[key] = answer
        rows = ((*key, a.verdict, a.by, a.when, a.note) for key, a in answers.items())
        write_csv(dataset / self.name, (*self.keys, "verdict", *_NOTES), rows)

    def _row(self, row: Mapping[str, str | None], where: str) -> tuple[Key, Answer]:
        key = tuple(sorted((row[name] or "").strip().lower() for name in self.keys))
        for sha256 in key:
            if not is_sha256(sha256):
                raise UserError(f"{where}: {sha256[:70]!r} is no whole SHA-256 of 64 digits.")
        if len(set(key)) < len(key):
            raise UserError(f"{where}: a pair has two images, and this is one.")
        said = (row["verdict"] or "").strip()
        if said not in self.verdicts:
            one, other = self.verdicts
            raise UserError(
                f"{where}: the verdict {said!r} is neither {one} nor {other}; correct it."
            )
        by, when, note = (row.get(name) or "" for name in _NOTES)
        return key, Answer(said, by, when, note)
