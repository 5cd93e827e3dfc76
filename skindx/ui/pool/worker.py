"""A worker: one process, one thread of arithmetic, one loaded bundle; it answers what it is sent.

It ends when its server does, however that ended: a thread waits for the connection to close.
"""

import logging
import os
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from skindx.diagnosis.answer import Answer
from skindx.diagnosis.case import Case
from skindx.diagnosis.refusal import Refused
from skindx.errors import UserError
from skindx.ui.faults import log_fault
from skindx.workers import framing

log = logging.getLogger(__name__)

Answerer = Callable[[Sequence[Case]], Sequence[Answer | UserError]]


def work(connection: socket.socket, folder: Path, load: Callable[[], Answerer]) -> None:
    """Answer until the connection closes; the process is over then, and `folder` is gone.

    Sends `{"ready": true}` first, or `{"unusable": sentence}` where `load` raises UserError.
    """
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox, folder), daemon=True).start()
    try:
        answer_many = load()
    except UserError as error:
        connection.sendall(framing.pack({"unusable": str(error)}))
        return
    connection.sendall(framing.pack({"ready": True}))
    while True:
        cases = [framing.rebuilt(Case, each) for each in inbox.get()]
        connection.sendall(framing.pack(_told_of(answer_many, cases)))


def _told_of(answer_many: Answerer, cases: Sequence[Case]) -> list[dict[str, Any]]:
    try:
        return [_told(each) for each in answer_many(cases)]
    except Exception as error:
        if len(cases) > 1:  # one of them spoils it for all
            return [told for case in cases for told in _told_of(answer_many, [case])]
        log_fault(log, "a case could not be answered", error)
        return [{"failed": True}]


def _told(answer: Answer | UserError) -> dict[str, Any]:
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


def _receive(connection: socket.socket, inbox: "SimpleQueue[Any]", folder: Path) -> None:
    while True:
        try:
            size = int.from_bytes(_exactly(connection, framing.LENGTH_BYTES), "big")
            head = _exactly(connection, size)
            inbox.put(
                framing.unpack(head, [_exactly(connection, n) for n in framing.blob_sizes(head)])
            )
        except OSError:  # the server is gone, so nobody waits for an answer
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        read = connection.recv_into(view)
        if not read:
            raise ConnectionResetError
        view = view[read:]
    return bytes(data)
