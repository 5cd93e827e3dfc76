"""A reviewer's walk through pairs of images that may be copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skindx.data.boxes.annotations import check_person
from skindx.data.copies.answers import Answer, Said, put_answer, read_answers, write_answer
from skindx.data.copies.copy import ACCEPT
from skindx.data.copies.records import COPIES, CopyRecord, Pair, pair_of, read_copies
from skindx.data.manifest import Record, read_manifest
from skindx.errors import UserError
from skindx.files import only_writer

_WAIT_S = 0.5


class CopyReview:
    """One reviewer's answers, on disk after every `save` and `undo`.

    Pairs that nobody answered come first: the uncertain ones, the most probable first, and then
    the verified ones, the least probable first. The order stands until the review ends.
    """

    def __init__(self, dataset: Path, by: str) -> None:
        """Read a dataset. Raises UserError for one whose build found no pairs."""
        self.dataset, self.by = dataset, by
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
        self._answers = read_answers(dataset)
        self.order = tuple(sorted(shown, key=self._rank))
        self._place = {pair: place for place, pair in enumerate(self.order)}
        self._before: list[tuple[Pair, Answer | None]] = []

    def _rank(self, pair: Pair) -> tuple[bool, bool, float, Pair]:
        probability = self.rows[pair].probability
        sure = probability >= ACCEPT
        return pair in self._answers, sure, probability if sure else -probability, pair

    @property
    def answered(self) -> int:
        """How many of the pairs have an answer."""
        return sum(pair in self._answers for pair in self.order)

    @property
    def first(self) -> Pair:
        """The first pair without an answer, or the first of all."""
        return next((pair for pair in self.order if pair not in self._answers), self.order[0])

    def pair(self, one: str, other: str) -> Pair:
        """Return the pair of two SHA-256. Raises UserError for one that is not here."""
        pair = pair_of(one, other)
        if pair not in self._place:
            raise UserError("the dataset has no such pair; load the page again.")
        return pair

    def images(self, pair: Pair) -> tuple[Record, Record]:
        """Return the records of a pair's images."""
        return self.records[pair[0]], self.records[pair[1]]

    def place(self, pair: Pair) -> int:
        """Return where a pair stands in the order, from 0."""
        return self._place[pair]

    def step(self, pair: Pair, by: int) -> Pair:
        """Return the pair so many places on; after the last comes the first."""
        return self.order[(self.place(pair) + by) % len(self.order)]

    def said(self, pair: Pair) -> Answer | None:
        """Return what a person said of a pair."""
        return self._answers.get(pair)

    def save(self, pair: Pair, said: Said) -> None:
        """Write an answer; the next build obeys it."""
        self._before.append((pair, self._answers.get(pair)))
        write_answer(self.dataset, *pair, said, self.by)
        self._answers = read_answers(self.dataset)

    def undo(self) -> Pair | None:
        """Give the pair that was answered last what it had before, and return it; None: none."""
        if not self._before:
            return None
        pair, before = self._before.pop()
        put_answer(self.dataset, pair, before)
        self._answers = read_answers(self.dataset)
        return pair


@contextmanager
def reviewing_copies(dataset: Path, by: str) -> Iterator[CopyReview]:
    """Hold a dataset for one reviewer. Raises UserError when somebody else is at work in it."""
    if not by.strip():
        raise UserError("a reviewer needs a name; give one with --by NAME.")
    check_person(by.strip())
    if not dataset.is_dir():
        raise UserError(f"dataset {dataset} does not exist; give a folder of `skindx build`.")
    with only_writer(dataset, "review or build", wait_s=_WAIT_S):
        yield CopyReview(dataset, by.strip())
