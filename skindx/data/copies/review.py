"""A reviewer's walk through pairs of images that may be copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.answer_review import AnswerReview, held_for
from skindx.data.copies.answers import put_answer, read_answers
from skindx.data.copies.copy import ACCEPT
from skindx.data.copies.records import COPIES, CopyRecord, Pair, pair_of, read_copies
from skindx.data.manifest import Record, read_manifest


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
