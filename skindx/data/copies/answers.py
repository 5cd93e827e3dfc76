"""People's answers about pairs: DATASET/copy_answers.csv, written by the page or by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from skindx.data.answers import Answer, AnswerFile, answer_now
from skindx.data.copies.records import Pair, pair_of

ANSWERS = "copy_answers.csv"

Said = Literal["same", "different"]
_FILE = AnswerFile(ANSWERS, ("sha256_a", "sha256_b"), ("same", "different"))


def read_answers(dataset: Path) -> dict[Pair, Answer]:
    """Read a dataset folder's answers; the last row of a pair counts. Raises UserError."""
    return cast(dict[Pair, Answer], _FILE.read(dataset))


def said_same(answers: Mapping[Pair, Answer]) -> dict[Pair, bool]:
    """Return for each pair whether a person called it the same."""
    return {pair: answer.verdict == "same" for pair, answer in answers.items()}


def write_answer(dataset: Path, one: str, other: str, said: Said, by: str = "") -> None:
    """Write what a person says of a pair, atomically."""
    put_answer(dataset, pair_of(one, other), answer_now(said, by))


def put_answer(dataset: Path, pair: Pair, answer: Answer | None) -> None:
    """Give a pair this answer, or none, atomically."""
    _FILE.put(dataset, pair, answer)
