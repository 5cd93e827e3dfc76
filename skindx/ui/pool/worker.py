"""A worker: one process, one thread of arithmetic, one loaded bundle; it answers what it is sent.

It ends when its server does, however that ended: a thread waits for the connection to close.
"""

import logging
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from skindx.diagnosis.case import Case
from skindx.diagnosis.refusal import Refused
from skindx.errors import UserError
from skindx.ui.pool import wire

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor

log = logging.getLogger(__name__)


def work(connection: socket.socket, bundle: Path, version: str) -> None:
    """Answer until the connection closes; the process is over then.

    Sends `{"ready": true}` first, or `{"unusable": sentence}` for a bundle that cannot be loaded
    or is no longer the one of this `version`.
    """
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        predictor = _load(bundle, version)
    except UserError as error:
        connection.sendall(wire.pack({"unusable": str(error)}))
        return
    connection.sendall(wire.pack({"ready": True}))
    while True:
        cases = [wire.rebuilt(Case, each) for each in inbox.get()]
        connection.sendall(wire.pack(_answers(predictor, cases)))


def _load(bundle: Path, version: str) -> "Predictor":
    import cv2
    import torch

    # One photo is too little work to share: two threads wait for each other at barriers, many
    # times as long when anything else runs on the machine. Several workers use several cores.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    from skindx.diagnosis.diagnose import bundle_version
    from skindx.diagnosis.predictor import Predictor

    predictor = Predictor.load(bundle)
    if bundle_version(predictor.bundle) != version:
        raise UserError(
            f"bundle {bundle} was replaced while it was served; start `skindx serve` again."
        )
    return predictor


def _answers(predictor: "Predictor", cases: Sequence[Case]) -> list[dict[str, Any]]:
    from skindx.diagnosis.diagnose import answer_many

    try:
        return [_told(each) for each in answer_many(predictor, cases)]
    except Exception:
        if len(cases) > 1:  # one of them spoils it for all
            return [told for case in cases for told in _answers(predictor, [case])]
        log.exception("a case could not be answered")
        return [{"failed": True}]


def _told(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Refused):
        return {"refused": str(answer), "gate": answer.gate, "photo": answer.photo}
    if isinstance(answer, UserError):
        return {"error": str(answer)}
    return {"answer": wire.plain(answer)}


def _receive(connection: socket.socket, inbox: "SimpleQueue[Any]") -> None:
    while True:
        try:
            head = _exactly(
                connection, int.from_bytes(_exactly(connection, wire.LENGTH_BYTES), "big")
            )
            inbox.put(wire.unpack(head, [_exactly(connection, n) for n in wire.blob_sizes(head)]))
        except OSError:  # the server is gone, so nobody waits for an answer
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
