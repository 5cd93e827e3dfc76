"""People's answers on whether flagged images show skin: DATASET/skin_answers.csv.

It is no decision of `decisions.csv`: who says that an image shows skin has not said that it may be
published.
"""

from pathlib import Path
from typing import Literal

from skindx.data.answers import Answer, AnswerFile, answer_now

SKIN_ANSWERS = "skin_answers.csv"

SaidSkin = Literal["skin", "not skin"]
_FILE = AnswerFile(SKIN_ANSWERS, ("sha256",), ("skin", "not skin"))


def read_skin_answers(dataset: Path) -> dict[str, Answer]:
    """Read a dataset folder's answers; the last row of an image counts. Raises UserError."""
    return {sha256: answer for (sha256,), answer in _FILE.read(dataset).items()}


def said_skin(dataset: Path) -> dict[str, bool]:
    """Return for each image of which a person said something whether it shows skin."""
    answers = read_skin_answers(dataset)
    return {sha256: answer.verdict == "skin" for sha256, answer in answers.items()}


def write_skin_answer(dataset: Path, sha256: str, said: SaidSkin, by: str = "") -> None:
    """Write what a person says of an image, atomically."""
    put_skin_answer(dataset, sha256, answer_now(said, by))


def put_skin_answer(dataset: Path, sha256: str, answer: Answer | None) -> None:
    """Give an image this answer, or none, atomically."""
    _FILE.put(dataset, (sha256,), answer)
