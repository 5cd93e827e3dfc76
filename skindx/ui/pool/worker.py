"""A worker of the server: one process, one thread of arithmetic, one loaded bundle."""

import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import CaseAnswer
from skindx.ui.faults import log_fault
from skindx.workers import framing
from skindx.workers.child import Answers, serve

log = logging.getLogger(__name__)

Answerer = Callable[[Sequence[Case]], Sequence[CaseAnswer | UserError]]


def serve_cases(connection: socket.socket, folder: Path, load: Callable[[], Answerer]) -> None:
    """Answer cases until the connection closes; the process ends then.

    `load` returns what answers cases; a UserError that it raises is sent as why it cannot.
    """

    def prepare() -> Answers:
        answer_many = load()
        return lambda batch: answer_cases(
            answer_many, [framing.rebuilt(Case, plain) for plain in batch]
        )

    serve(connection, folder, prepare)


def answer_cases(answer_many: Answerer, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return a message for each case; an error of one spoils it for no other."""
    try:
        return [_message(answer) for answer in answer_many(cases)]
    except Exception as error:
        if len(cases) > 1:  # one of them spoils it for all
            return [message for case in cases for message in answer_cases(answer_many, [case])]
        log_fault(log, "a case could not be answered", error)
        return [{"failed": True}]


def _message(answer: CaseAnswer | UserError) -> dict[str, Any]:
    if isinstance(answer, Refused):
        refusals = [framing.plain(refusal) for refusal in answer.refusals]
        return {
            "refused": str(answer),
            "gate": answer.gate,
            "photo": answer.photo,
            "refusals": refusals,
        }
    if isinstance(answer, UserError):
        return {"error": str(answer)}
    return {"answer": framing.plain(answer)}
