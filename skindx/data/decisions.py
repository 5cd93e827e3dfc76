"""Flags that programs raise for review, the decisions of people, and their answers to questions.

Answers are CSV files in the dataset folder, which a page writes, or a person by hand; the next
build obeys them. Whether an image shows skin (skin_answers.csv) is no decision of decisions.csv:
who says that it does has not said that it may be published.
"""

import csv
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast, get_args

from skindx.core.atomic_files import write_csv
from skindx.core.errors import UserError
from skindx.data.blocklist import is_sha256
from skindx.data.layout import MANIFEST
from skindx.data.manifest import read_manifest, read_rows, write_table

Key = tuple[str, ...]
"""The SHA-256 of the images that an answer is about."""

_NOTES = ("by", "when", "note")


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """A person's answer, one of the verdicts of its file."""

    verdict: str
    by: str = ""
    when: str = ""
    """UTC, ISO 8601."""
    note: str = ""


def answer_now(verdict: str, by: str) -> ReviewAnswer:
    """Return an answer that is given at this moment."""
    return ReviewAnswer(verdict, by, datetime.now(UTC).isoformat(timespec="seconds"))


@contextmanager
def _csv_rows(path: Path) -> "Iterator[csv.DictReader[str]]":
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield csv.DictReader(file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV ({error}); correct it.") from None


@dataclass(frozen=True)
class AnswerFile:
    """One kind of question: the columns that name the images, and the two verdicts."""

    name: str
    keys: tuple[str, ...]
    verdicts: tuple[str, str]

    def read(self, dataset: Path) -> dict[Key, ReviewAnswer]:
        """Read a dataset folder's answers; the last row of a key counts. Raises UserError."""
        path, needed = dataset / self.name, (*self.keys, "verdict")
        if not path.exists():
            return {}
        with _csv_rows(path) as reader:
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(
                    f"{path} has no column {missing[0]}; its first line names {', '.join(needed)}."
                )
            return dict(self._row(row, f"{path}, line {reader.line_num}") for row in reader)

    def put(self, dataset: Path, key: Key, answer: ReviewAnswer | None) -> None:
        """Give a key this answer, or none, atomically."""
        answers = self.read(dataset)
        answers.pop(key, None)
        if answer:
            answers[key] = answer
        rows = ((*key, a.verdict, a.by, a.when, a.note) for key, a in answers.items())
        write_csv(dataset / self.name, (*self.keys, "verdict", *_NOTES), rows)

    def _row(self, row: Mapping[str, str | None], where: str) -> tuple[Key, ReviewAnswer]:
        key = tuple(sorted((row[name] or "").strip().lower() for name in self.keys))
        for sha256 in key:
            if not is_sha256(sha256):
                raise UserError(f"{where}: {sha256[:70]!r} is no whole SHA-256 of 64 digits.")
        if len(set(key)) < len(key):
            raise UserError(f"{where}: a pair has two images, and this is one.")
        verdict = (row["verdict"] or "").strip()
        if verdict not in self.verdicts:
            one, other = self.verdicts
            raise UserError(
                f"{where}: the verdict {verdict!r} is neither {one} nor {other}; correct it."
            )
        by, when, note = (row.get(name) or "" for name in _NOTES)
        return key, ReviewAnswer(verdict, by, when, note)


SKIN_ANSWERS = "skin_answers.csv"

SkinVerdict = Literal["skin", "not skin"]
_FILE = AnswerFile(SKIN_ANSWERS, ("sha256",), ("skin", "not skin"))


def read_skin_answers(dataset: Path) -> dict[str, ReviewAnswer]:
    """Read a dataset folder's answers; the last row of an image counts. Raises UserError."""
    return {sha256: answer for (sha256,), answer in _FILE.read(dataset).items()}


def answered_skin(dataset: Path) -> dict[str, bool]:
    """Return for each image of which a person said something whether it shows skin."""
    answers = read_skin_answers(dataset)
    return {sha256: answer.verdict == "skin" for sha256, answer in answers.items()}


def write_skin_answer(dataset: Path, sha256: str, verdict: SkinVerdict, by: str = "") -> None:
    """Write what a person says of an image, atomically."""
    put_skin_answer(dataset, sha256, answer_now(verdict, by))


def put_skin_answer(dataset: Path, sha256: str, answer: ReviewAnswer | None) -> None:
    """Give an image this answer, or none, atomically."""
    _FILE.put(dataset, (sha256,), answer)


FLAGS = "flags.parquet"
DECISIONS = "decisions.csv"
LOOKED_AT = "looked_at.parquet"

Reason = Literal["face", "text", "intimate", "label", "off-topic", "not-skin", "quality"]
PRIVATE: frozenset[Reason] = frozenset({"face", "text", "intimate"})
"""An image with such a flag is not given away before a person has said that it may be."""

SKIN_REASONS: frozenset[Reason] = frozenset({"not-skin", "off-topic"})
"""Such a flag is settled by who says whether the image shows skin."""

Verdict = Literal["keep", "withhold", "remove"]
"""keep: nothing is wrong; withhold: never publish its bytes; remove: not in the next build."""

REVIEWED = "reviewed"
"""Reason of an image that a person kept out."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One reason to look at one image. `score` in 0..1: how sure the program is."""

    sha256: str
    reason: Reason
    score: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """A program has looked at one image for one reason, whether it raised a flag or not."""

    sha256: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's decision about one image, for any flag."""

    sha256: str
    verdict: Verdict
    by: str = ""
    when: str = ""
    """UTC, ISO 8601."""
    note: str = ""


def write_flags(dataset: Path, flags: Iterable[Flag], replacing: Iterable[Reason]) -> None:
    """Write flags of the reasons `replacing`, atomically; flags of other reasons stay.

    The caller has looked at every image of the manifest for these reasons, which is noted too:
    an image without a flag is one that was looked at, or one that came later.
    """
    gone = set(replacing)
    _save_flags(dataset, _replaced(read_flags(dataset), flags, gone))
    if (dataset / MANIFEST).exists():
        _note_looks(dataset, gone)


def stage_flags(
    dataset: Path, staging: Path, flags: Sequence[Flag], replacing: Iterable[Reason]
) -> None:
    """Write the new flags of `dataset` to `staging`, unless it had none and gets none.

    As `write_flags` does, for who changes several tables together and looked while it built them.
    """
    before = read_flags(dataset)
    after = _replaced(before, flags, set(replacing))
    if after != before:
        _save_flags(staging, after)


def _replaced(before: Iterable[Flag], flags: Iterable[Flag], gone: set[Reason]) -> list[Flag]:
    rows = [flag for flag in before if flag.reason not in gone] + list(flags)
    return sorted(rows, key=lambda flag: (flag.sha256, flag.reason, -flag.score, flag.detail))


def _save_flags(folder: Path, rows: Sequence[Flag]) -> None:
    import pyarrow as pa

    names = [field.name for field in dataclasses.fields(Flag)]
    schema = pa.schema([(name, pa.float32() if name == "score" else pa.string()) for name in names])
    write_table(folder / FLAGS, rows, schema)


def _note_looks(dataset: Path, reasons: set[Reason]) -> None:
    import pyarrow as pa

    looks = [look for look in _read_looks(dataset) if look.reason not in reasons]
    looks += [Look(r.sha256, reason) for r in read_manifest(dataset) for reason in sorted(reasons)]
    schema = pa.schema([("sha256", pa.string()), ("reason", pa.string())])
    write_table(dataset / LOOKED_AT, looks, schema)


def _read_looks(dataset: Path) -> list[Look]:
    if not (dataset / LOOKED_AT).exists():
        return []
    rows = read_rows(dataset / LOOKED_AT, Look, "run `skindx audit` again")
    return [Look(**row) for row in rows]


def looked_at(dataset: Path, reasons: Iterable[Reason] = PRIVATE) -> set[str]:
    """Return the SHA-256 of the images that programs have looked at for all of `reasons`."""
    seen: dict[Reason, set[str]] = defaultdict(set)
    for look in _read_looks(dataset):
        seen[look.reason].add(look.sha256)
    return set.intersection(*(seen[reason] for reason in reasons))


def read_flags(dataset: Path) -> list[Flag]:
    """Read a dataset folder's flags; none when no program has looked yet. Raises UserError."""
    if not (dataset / FLAGS).exists():
        return []
    return [Flag(**row) for row in read_rows(dataset / FLAGS, Flag, "run `skindx audit` again")]


def read_decisions(dataset: Path) -> dict[str, Decision]:
    """Read DATASET/decisions.csv: SHA-256 -> decision; the last row of an image counts.

    The file is written by people or by a page, with the columns sha256, verdict, by, when, note.
    Raises UserError for a row that cannot be understood.
    """
    path = dataset / DECISIONS
    if not path.exists():
        return {}
    decisions: dict[str, Decision] = {}
    with _csv_rows(path) as reader:
        if not {"sha256", "verdict"} <= set(reader.fieldnames or ()):
            raise UserError(f"{path} needs the columns sha256 and verdict in its first line.")
        for row in reader:
            verdict, sha256 = ((row[name] or "").strip() for name in ("verdict", "sha256"))
            if verdict not in get_args(Verdict):
                raise UserError(
                    f"{path}, line {reader.line_num}: the verdict {verdict!r} is none of "
                    f"{', '.join(get_args(Verdict))}; correct it."
                )
            if not is_sha256(sha256.lower()):
                raise UserError(
                    f"{path}, line {reader.line_num}: {sha256.lower()[:70]!r} is no whole SHA-256 "
                    f"of 64 digits; a click on a gallery's digits marks them all."
                )
            by, when, note = (row.get(name) or "" for name in _NOTES)
            decisions[sha256.lower()] = Decision(
                sha256.lower(), cast(Verdict, verdict), by, when, note
            )
    return decisions


def undecided(dataset: Path, reasons: Iterable[Reason] = PRIVATE) -> dict[str, list[Flag]]:
    """Return SHA-256 -> flags of `reasons` that are not decided."""
    wanted, decided = set(reasons), read_decisions(dataset)
    answered = read_skin_answers(dataset)
    waiting: dict[str, list[Flag]] = defaultdict(list)
    for flag in read_flags(dataset):
        settled = flag.reason in SKIN_REASONS and flag.sha256 in answered
        if flag.reason in wanted and flag.sha256 not in decided and not settled:
            waiting[flag.sha256].append(flag)
    return dict(waiting)
