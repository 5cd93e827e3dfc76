"""A reviewer's walk through questions: what is asked next, what is saved, what is undone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.data.answers import Answer, answer_now
from skindx.data.boxes.annotations import check_person

_WAIT_S = 0.5

Asked = TypeVar("Asked")
"""What one question is about: an image or a pair."""


class AnswerReview(Generic[Asked]):
    """One reviewer's answers, on disk after every `save` and `undo`.

    Unanswered questions come first. The order is fixed until the review ends.
    """

    def __init__(
        self,
        dataset: Path,
        by: str,
        asked: Sequence[Asked],
        read: Callable[[Path], Mapping[Asked, Answer]],
        put: Callable[[Path, Asked, Answer | None], None],
    ) -> None:
        """Take what is asked, the most urgent first. Raises UserError for damaged answers."""
        self.dataset, self.by = dataset, by
        self._read, self._put = read, put
        self._answers = read(dataset)
        self.order = tuple(sorted(asked, key=self._answers.__contains__))
        self._place = {one: place for place, one in enumerate(self.order)}
        self._before: list[tuple[Asked, Answer | None]] = []

    @property
    def answered(self) -> int:
        """How many of the questions have an answer."""
        return sum(one in self._answers for one in self.order)

    @property
    def first(self) -> Asked:
        """The first question without an answer, or the first of all."""
        return next((one for one in self.order if one not in self._answers), self.order[0])

    def __contains__(self, one: object) -> bool:
        return one in self._place

    def place(self, one: Asked) -> int:
        """Return where a question stands in the order, from 0."""
        return self._place[one]

    def step(self, one: Asked, by: int) -> Asked:
        """Return the question so many places on; after the last comes the first."""
        return self.order[(self.place(one) + by) % len(self.order)]

    def said(self, one: Asked) -> Answer | None:
        """Return what a person said."""
        return self._answers.get(one)

    def save(self, one: Asked, verdict: str) -> None:
        """Write an answer; the next build obeys it."""
        self._before.append((one, self._answers.get(one)))
        self._write(one, answer_now(verdict, self.by))

    def undo(self) -> Asked | None:
        """Give what was answered last what it had before, and return it; None: nothing was."""
        if not self._before:
            return None
        one, before = self._before.pop()
        self._write(one, before)
        return one

    def _write(self, one: Asked, answer: Answer | None) -> None:
        self._put(self.dataset, one, answer)
        self._answers = self._read(self.dataset)


@contextmanager
def held_for(dataset: Path, by: str) -> Iterator[str]:
    """Hold a dataset for one reviewer; yield the name. Raises UserError while another holds it."""
    if not by.strip():
        raise UserError("a reviewer needs a name; give one with --by NAME.")
    check_person(by.strip())
    if not dataset.is_dir():
        raise UserError(f"dataset {dataset} does not exist; give a folder of `skindx build`.")
    with only_writer(dataset, "review or build", wait_s=_WAIT_S):
        yield by.strip()
