"""What people answered about a dataset's images: `decisions.csv`, which only ever grows.

A row answers one question about an image or a pair, and the last row of a question counts; who
undoes an answer adds a row that gives back the one before. Pages and people write rows; a person's
need no more than sha256 and verdict. Several may write at once: each row goes in whole, and who
answers what somebody else has answered since is told so. `skin_answers.csv` and `copy_answers.csv`
of older versions count as rows before all others.
"""

import csv
import fcntl
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from skindx.core.atomic_files import atomic_file, keep_old
from skindx.core.errors import UserError
from skindx.data.blocklist import is_sha256
from skindx.data.tables.reader import named_rows
from skindx.data.tables.text_files import open_text, separated

DECISIONS = "decisions.csv"

Question = Literal["image", "label", "skin", "copy", "box", "note"]
"""What is asked: may it be used and given away, which class, is it skin, are two images copies, is
its box right, and a remark that answers nothing."""

Verdict = Literal["keep", "withhold", "remove"]
"""keep: nothing is wrong; withhold: never publish its bytes; remove: not in the next build."""

VERDICTS: dict[Question, tuple[str, ...]] = {
    "image": get_args(Verdict),
    "label": ("relabel",),
    "skin": ("skin", "not skin"),
    "copy": ("same", "different"),
    "box": ("box right", "box wrong"),
    "note": ("note",),
}
UNDONE = "undone"
"""The verdict of a row after which its question has no answer."""

QUESTION_OF: dict[str, Question] = {
    verdict: question for question, verdicts in VERDICTS.items() for verdict in verdicts
}
COLUMNS = (
    *("sha256", "sha256_b", "question", "verdict", "label", "by", "when", "note", "version"),
)
"""`sha256_b`: the other image of a pair; `label`: the class of a relabelled image."""
_VERSION = "1"
_OLDER: dict[str, tuple[Question, tuple[str, ...]]] = {
    "skin_answers.csv": ("skin", ("sha256",)),
    "copy_answers.csv": ("copy", ("sha256_a", "sha256_b")),
}

Key = tuple[str, ...]
"""The SHA-256 of the image, or of both images of a pair, the smaller one first."""


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """A person's answer, one of the verdicts of its question."""

    verdict: str
    by: str = ""
    when: str = ""
    """UTC, ISO 8601."""
    note: str = ""
    label: str = ""


def answer_now(verdict: str, by: str, *, label: str = "", note: str = "") -> ReviewAnswer:
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    return ReviewAnswer(verdict, by, when, note, label)


class AnsweredMeanwhileError(UserError):
    """Somebody else has answered a question since the asker read it."""


History = dict[tuple[Question, Key], list[ReviewAnswer | None]]
"""All answers to each question, in their order; None: undone."""


class AnswerLog:
    """The answers of a dataset, as this process last read them."""

    def __init__(self, dataset: Path) -> None:
        """Read them. Raises UserError for a row that cannot be understood."""
        self._dataset, self._path = dataset, dataset / DECISIONS
        self._history: History = {}
        self._state: object = None
        self._changed: list[Key] = []
        self.refresh()
        self._changed = []

    def refresh(self) -> None:
        """Read again if others have written since."""
        state = self._signature()
        if state == self._state:
            return
        history: History = defaultdict(list)
        for name, (question, keys) in _OLDER.items():
            for key, answer in _read_older(self._dataset / name, question, keys):
                history[question, key] = [answer]
        for question, key, given in _rows_of(self._path):
            history[question, key].append(given)
        questions = history.keys() | self._history.keys()
        changed = [one for one in questions if history.get(one) != self._history.get(one)]
        self._changed += [key for _, key in changed]
        self._history, self._state = dict(history), state

    def answers(self, question: Question) -> dict[Key, ReviewAnswer]:
        """Return the answer of each image or pair of which this was answered."""
        last = ((key, rows[-1]) for (of, key), rows in self._history.items() if of == question)
        return {key: answer for key, answer in last if answer}

    def latest(self, question: Question, key: Key) -> ReviewAnswer | None:
        """Return the last answer to a question; None where there is none."""
        rows = self._history.get((question, key))
        return rows[-1] if rows else None

    def revision(self, question: Question, key: Key) -> int:
        """Return how often a question was answered or undone."""
        return len(self._history.get((question, key), ()))

    def check(self, question: Question, key: Key, revision: int | None) -> None:
        """Raise AnsweredMeanwhileError where a question is beyond the `revision` given."""
        if revision is not None and self.revision(question, key) != revision:
            raise AnsweredMeanwhileError(_meanwhile(self.latest(question, key)))

    def take_changes(self) -> list[Key]:
        """Return whose answers changed since this was called last, by anybody."""
        changed, self._changed = self._changed, []
        return changed

    def add(self, key: Key, answer: ReviewAnswer, revision: int | None = None) -> None:
        """Add an answer, on disk when this returns.

        Raises AnsweredMeanwhileError where the question is beyond the `revision` that the caller
        knows, with nothing written.
        """
        self._append(QUESTION_OF[answer.verdict], key, answer, revision)

    def restore(
        self, question: Question, key: Key, before: int, by: str, revision: int | None = None
    ) -> None:
        """Give a question the answer again that it had at revision `before`; as `add` does."""
        rows = self._history.get((question, key), ())
        if not 0 <= before <= len(rows):
            raise UserError("there is no answer to undo; reload the page and look again.")
        self._append(question, key, rows[before - 1] if before else None, revision, by)

    def _append(
        self,
        question: Question,
        key: Key,
        answer: ReviewAnswer | None,
        revision: int | None,
        by: str = "",
    ) -> None:
        with _only_appender(self._path) as descriptor:
            self.refresh()
            self.check(question, key, revision)
            given = answer or answer_now(UNDONE, by)
            _append_row(self._path, descriptor, _cells(question, key, given))
            self._history.setdefault((question, key), []).append(answer)
            self._changed.append(key)
            self._state = self._signature()

    def _signature(self) -> object:
        paths = (self._path, *(self._dataset / name for name in _OLDER))
        return [_stat(path) for path in paths]


def read_answers_to(dataset: Path, question: Question) -> dict[Key, ReviewAnswer]:
    """Return a dataset folder's answers to one question. Raises UserError."""
    return AnswerLog(dataset).answers(question)


def _meanwhile(answer: ReviewAnswer | None) -> str:
    if answer is None:
        return "somebody has undone this answer meanwhile; nothing was changed."
    what = f"{answer.verdict} {answer.label}".strip()
    return f"{answer.by or 'somebody'} has answered {what!r} meanwhile; nothing was changed."


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


@contextmanager
def _only_appender(path: Path) -> Iterator[int]:
    """Hold the file against other writers, who may have put another one in its place."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(
            f"{path} is no plain file, so your answer was not saved; move it away, then give the "
            "answer again."
        )
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            state = _stat(path)
            if state and state[0] == os.fstat(descriptor).st_ino:
                yield descriptor
                return
        finally:
            os.close(descriptor)


@contextmanager
def held_answers(dataset: Path) -> Iterator[None]:
    """Let nobody add an answer while a program writes the file anew; without a file nothing."""
    path = dataset / DECISIONS
    if not path.is_file():
        yield
        return
    with _only_appender(path):
        yield


def take_in_older(dataset: Path) -> dict[str, int]:
    """Write the answers of older versions' files into decisions.csv, before all others.

    Returns how many each file had; it stays beside, as FILE.old. Raises UserError for a row that
    cannot be understood, with nothing written.
    """
    files = [dataset / name for name in _OLDER if (dataset / name).exists()]
    if not files:
        return {}
    AnswerLog(dataset)  # checks every row
    taken: dict[str, list[dict[str, str | None]]] = {}
    for file in files:
        question, keys = _OLDER[file.name]
        taken[file.name] = [
            dict(zip(COLUMNS, _cells(question, key, answer), strict=True))
            for key, answer in _read_older(file, question, keys)
        ]
    path = dataset / DECISIONS
    with _only_appender(path):
        if path.stat().st_size and not path.read_bytes().endswith(b"\n") and not _is_whole(path):
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        there = _raw_rows(path) if path.stat().st_size else []
        known = {tuple(row.get(name) for name in COLUMNS) for row in there}  # taken before a kill
        new = [row for rows in taken.values() for row in rows if tuple(row.values()) not in known]
        _write_rows(path, [*new, *there])
        for file in files:
            keep_old(file)
            file.unlink()
    return {name: len(rows) for name, rows in taken.items()}


def _cells(question: Question, key: Key, answer: ReviewAnswer) -> tuple[str, ...]:
    other = key[1] if len(key) > 1 else ""
    about = (answer.label, answer.by, answer.when, answer.note, _VERSION)
    return (key[0], other, question, answer.verdict, *about)


def _write_rows(path: Path, rows: Sequence[Mapping[str, str | None]]) -> None:
    """Write decisions.csv anew: today's columns, then those that a person added."""
    names = [
        *COLUMNS,
        *dict.fromkeys(name for row in rows for name in row if name and name not in COLUMNS),
    ]
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, names, lineterminator="\n", extrasaction="ignore", restval="")
        table.writeheader()
        table.writerows(rows)


def _append_row(path: Path, descriptor: int, row: Sequence[str]) -> None:
    data = path.read_bytes()
    lines = io.StringIO()
    with open_text(path) as (file, encoding):
        rows, sign = separated(file, COLUMNS, strict=False)
        _, head = next(rows, (0, []))
    if set(COLUMNS) - set(head) or (sign, encoding) != (",", "utf-8-sig"):
        # Of a person, or of an older version: written anew with the columns that it lacks.
        before = _raw_rows(path) if head else []
        _write_rows(path, [*before, dict(zip(COLUMNS, row, strict=True))])
        return
    if not data.endswith(b"\n"):
        whole = _is_whole(path)
        os.write(descriptor, b"\n") if whole else os.truncate(path, data.rfind(b"\n") + 1)
    given = dict(zip(COLUMNS, row, strict=True))
    csv.writer(lines, lineterminator="\n").writerow([given.get(name, "") for name in head])
    os.write(descriptor, lines.getvalue().encode())  # one write a row: a kill tears none
    os.fsync(descriptor)


def _is_whole(path: Path) -> bool:
    """Tell whether the last line can be understood; what a loss of power left cannot."""
    *_, last = _raw_rows(path)
    return (last.get("verdict") or "").strip() in {*QUESTION_OF, UNDONE}


def _raw_rows(path: Path) -> list[dict[str, str]]:
    return [row for _, row in named_rows(path, short=True)]


def _rows_of(path: Path) -> Iterator[tuple[Question, Key, ReviewAnswer | None]]:
    """Yield the rows of decisions.csv; a torn last line is none."""
    if not path.exists() or not path.stat().st_size:
        return
    rows = named_rows(path, ("sha256", "verdict"), short=True)
    torn = any("version" in row for _, row in rows) and not path.read_bytes().endswith(b"\n")
    for number, (where, row) in enumerate(rows, 1):
        try:
            yield _row(row, f"{path}, {where}")
        except UserError:
            if torn and number == len(rows):
                return
            raise


def _row(row: Mapping[str, str], where: str) -> tuple[Question, Key, ReviewAnswer | None]:
    cells = {name: (row.get(name) or "").strip() for name in COLUMNS}
    verdict = cells["verdict"]
    question = QUESTION_OF.get(verdict) or next(
        (one for one in VERDICTS if one == cells["question"]), None
    )
    if question is None or (verdict not in QUESTION_OF and verdict != UNDONE):
        raise UserError(
            f"{where}: the verdict {verdict!r} is unknown; write one of {', '.join(QUESTION_OF)}."
        )
    pair = question == "copy" or (question == "note" and cells["sha256_b"])
    key = _key([cells["sha256"], *([cells["sha256_b"]] if pair else [])], where)
    if verdict == "relabel" and not cells["label"]:
        raise UserError(
            f"{where}: the verdict relabel needs the correct class; write it into the column label."
        )
    if verdict == UNDONE:
        return question, key, None
    about = (cells[name] for name in ("by", "when", "note", "label"))
    return question, key, ReviewAnswer(verdict, *about)


def _key(given: Iterable[str], where: str) -> Key:
    key = tuple(sorted(sha256.strip().lower() for sha256 in given))
    for sha256 in key:
        if not is_sha256(sha256):
            raise UserError(
                f"{where}: {sha256[:70]!r} is not a SHA-256; write its 64 hexadecimal digits, or "
                "delete the line."
            )
    if len(set(key)) < len(key):
        raise UserError(
            f"{where}: both images of the pair are the same; correct the line, or delete it."
        )
    return key


def _read_older(
    path: Path, question: Question, keys: Sequence[str]
) -> Iterator[tuple[Key, ReviewAnswer]]:
    """Yield the rows of a file that older versions wrote, or a person by hand."""
    if not path.exists():
        return
    for at, row in named_rows(path, (*keys, "verdict"), short=True):
        where = f"{path}, {at}"
        key, verdict = _key((row.get(name, "") for name in keys), where), row.get("verdict", "")
        if verdict.strip() not in VERDICTS[question]:
            one, other = VERDICTS[question]
            raise UserError(
                f"{where}: the verdict {verdict.strip()!r} does not fit here; write {one} or "
                f"{other}."
            )
        about = (row.get(name, "") for name in ("by", "when", "note"))
        yield key, ReviewAnswer(verdict.strip(), *about)
