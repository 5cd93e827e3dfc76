"""A reviewer's walk through questions: is it skin, are two images copies; what is next, undone.

`AnswerReview` keeps the order and the answers; `SkinReview` asks about images that look like no
skin, or unusual, `CopyReview` about pairs that may be copies.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.data.boxes.annotations import check_person
from skindx.data.copies.copy_records import (
    COPIES,
    CopyRecord,
    Pair,
    pair_of,
    put_answer,
    read_answers,
    read_copies,
)
from skindx.data.copies.verify import ACCEPT
from skindx.data.decisions import (
    REVIEWED,
    SKIN_REASONS,
    Flag,
    ReviewAnswer,
    answer_now,
    put_skin_answer,
    read_flags,
    read_skin_answers,
)
from skindx.data.layout import store_files
from skindx.data.manifest import Issue, Record, read_issues, read_manifest

_WAIT_S = 0.5
"""Longer than a boxes import takes to end, far shorter than a person's patience."""

Question = TypeVar("Question")
"""What one question is about: an image or a pair."""


class AnswerReview(Generic[Question]):
    """One reviewer's answers, on disk after every `save` and `undo`.

    Unanswered questions come first. The order is fixed until the review ends.
    """

    def __init__(
        self,
        dataset: Path,
        by: str,
        questions: Sequence[Question],
        read: Callable[[Path], Mapping[Question, ReviewAnswer]],
        put: Callable[[Path, Question, ReviewAnswer | None], None],
    ) -> None:
        """Take the questions, the most urgent first. Raises UserError for damaged answers."""
        self.dataset, self.by = dataset, by
        self._read, self._put = read, put
        self._answers = read(dataset)
        self.order = tuple(sorted(questions, key=self._answers.__contains__))
        self._place = {one: place for place, one in enumerate(self.order)}
        self._before: list[tuple[Question, ReviewAnswer | None]] = []

    @property
    def answered(self) -> int:
        """How many of the questions have an answer."""
        return sum(one in self._answers for one in self.order)

    @property
    def first(self) -> Question:
        """The first question without an answer, or the first of all."""
        return next((one for one in self.order if one not in self._answers), self.order[0])

    def __contains__(self, one: object) -> bool:
        return one in self._place

    def place(self, one: Question) -> int:
        """Return where a question stands in the order, from 0."""
        return self._place[one]

    def step(self, one: Question, by: int) -> Question:
        """Return the question so many places on; after the last comes the first."""
        return self.order[(self.place(one) + by) % len(self.order)]

    def answer_to(self, one: Question) -> ReviewAnswer | None:
        """Return what a person answered."""
        return self._answers.get(one)

    def save(self, one: Question, verdict: str) -> None:
        """Write an answer; the next build obeys it."""
        self._before.append((one, self._answers.get(one)))
        self._write(one, answer_now(verdict, self.by))

    def undo(self) -> Question | None:
        """Give what was answered last what it had before, and return it; None: nothing was."""
        if not self._before:
            return None
        one, before = self._before.pop()
        self._write(one, before)
        return one

    def _write(self, one: Question, answer: ReviewAnswer | None) -> None:
        self._put(self.dataset, one, answer)
        self._answers = self._read(self.dataset)


@contextmanager
def held_for(dataset: Path, by: str) -> Iterator[str]:
    """Hold a dataset for one reviewer; yield the name. Raises UserError while another holds it."""
    if not by.strip():
        raise UserError("a reviewer needs a name; give one with --by NAME.")
    check_person(by.strip())
    with held_dataset(dataset):
        yield by.strip()


@contextmanager
def held_dataset(dataset: Path) -> Iterator[None]:
    """Hold a dataset. Raises UserError while a reviewer or a build holds it."""
    if not dataset.is_dir():
        raise UserError(f"dataset {dataset} does not exist; give a folder of `skindx build`.")
    with only_writer(dataset, "review or build", wait_s=_WAIT_S):
        yield


@dataclass(frozen=True, slots=True)
class DoubtfulImage:
    """One image of which a program, or a person before, doubts that it shows skin."""

    sha256: str
    path: str
    """Relative to the dataset folder."""
    label: str
    detail: str
    score: float
    """The highest of its flags, 0..1; 1 for one that the build took out."""
    kept: bool
    """Whether it is in the dataset."""


class SkinReview(AnswerReview[str]):
    """One reviewer's answers for images: those in the dataset, and those taken out as no skin.

    Of the unanswered ones, the least certain flags come first.
    """

    def __init__(self, dataset: Path, by: str) -> None:
        """Read a dataset. Raises UserError for one in which nothing is flagged."""
        self.images = {image.sha256: image for image in doubtful(dataset)}
        if not self.images:
            raise UserError(
                f"{dataset} has no images that are flagged as not skin or off-topic: there is "
                f"nothing to do. A build flags them with `screen.not_skin: review`."
            )
        questions = sorted(self.images, key=lambda sha256: (self.images[sha256].score, sha256))
        super().__init__(dataset, by, questions, read_skin_answers, put_skin_answer)

    def record(self, sha256: str) -> DoubtfulImage:
        """Return an image. Raises UserError for one that is not asked about."""
        if sha256 not in self.images:
            raise UserError("no such image is asked about; load the page again.")
        return self.images[sha256]


def doubtful(dataset: Path) -> Iterator[DoubtfulImage]:
    """Yield the images that are flagged, taken out, or answered for, and whose bytes are here."""
    flags: dict[str, list[Flag]] = defaultdict(list)
    for flag in read_flags(dataset):
        if flag.reason in SKIN_REASONS:
            flags[flag.sha256].append(flag)
    answered, seen = read_skin_answers(dataset).keys(), set()
    for record in read_manifest(dataset):
        raised = flags.get(record.sha256, [])
        if raised or record.sha256 in answered:
            seen.add(record.sha256)
            detail = "; ".join(flag.detail or flag.reason for flag in raised)
            score = max((flag.score for flag in raised), default=0.0)
            yield DoubtfulImage(record.sha256, record.path, record.label, detail, score, True)
    for issue in read_issues(dataset):
        files = store_files(dataset, issue.sha256) if _taken_out(issue, answered) else []
        if files and issue.sha256 not in seen:
            seen.add(issue.sha256)
            path = files[0].relative_to(dataset).as_posix()
            yield DoubtfulImage(issue.sha256, path, issue.label, issue.detail, 1.0, False)


def _taken_out(issue: Issue, answered: Collection[str]) -> bool:
    return issue.reason == "not-skin" or (issue.reason == REVIEWED and issue.sha256 in answered)


@contextmanager
def reviewing_skin(dataset: Path, by: str) -> Iterator[SkinReview]:
    """Hold a dataset for one reviewer. Raises UserError while another reviewer holds it."""
    with held_for(dataset, by) as name:
        yield SkinReview(dataset, name)


class CopyReview(AnswerReview[Pair]):
    """One reviewer's answers for pairs.

    Of the unanswered ones, the uncertain come first, the most probable of them first,
    and then the verified ones, the least probable first.
    """

    def __init__(self, dataset: Path, by: str) -> None:
        """Read a dataset. Raises UserError for one whose build found no pairs."""
        if not (dataset / COPIES).exists():
            raise UserError(
                f"{dataset} was built without the search for copies; build it again with "
                f"`dedup.copies: group`."
            )
        self.records = {record.sha256: record for record in read_manifest(dataset)}
        rows = read_copies(dataset / COPIES)
        shown = {row.pair: row for row in rows if self.records.keys() >= set(row.pair)}
        if not shown:
            raise UserError(f"{dataset} has no pairs that may be copies: there is nothing to do.")
        self.rows: dict[Pair, CopyRecord] = shown
        super().__init__(dataset, by, sorted(shown, key=self._rank), read_answers, put_answer)

    def _rank(self, pair: Pair) -> tuple[bool, float, Pair]:
        probability = self.rows[pair].probability
        sure = probability >= ACCEPT
        return sure, probability if sure else -probability, pair

    def pair(self, one: str, other: str) -> Pair:
        """Return the pair of two SHA-256. Raises UserError for one that is not here."""
        pair = pair_of(one, other)
        if pair not in self:
            raise UserError("the dataset has no such pair; load the page again.")
        return pair

    def images(self, pair: Pair) -> tuple[Record, Record]:
        """Return the records of a pair's images."""
        return self.records[pair[0]], self.records[pair[1]]


@contextmanager
def reviewing_copies(dataset: Path, by: str) -> Iterator[CopyReview]:
    """Hold a dataset for one reviewer. Raises UserError while another reviewer holds it."""
    with held_for(dataset, by) as name:
        yield CopyReview(dataset, name)
