"""A person's answer, written as the review page writes it."""

from pathlib import Path

from skindx.data.answer_log import AnswerLog, answer_now


def write_answer(
    dataset: Path, verdict: str, *sha256s: str, by: str = "me", label: str = ""
) -> None:
    AnswerLog(dataset).add(tuple(sorted(sha256s)), answer_now(verdict, by, label=label))
