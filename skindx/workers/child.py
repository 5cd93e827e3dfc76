"""The worker's side: it answers what it receives, and ends when its parent does."""

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from skindx.core.errors import UserError
from skindx.workers import framing

Answers = Callable[[list[Any]], list[Any]]
"""Returns one plain value for each request of a batch."""


def serve(connection: socket.socket, folder: Path, load: Callable[[], Answers]) -> None:
    """Answer batches until the connection closes; the process ends then, and `folder` is deleted.

    Sends `{"ready": true}` first, or `{"unusable": sentence}` where `load` raises UserError.
    """
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox, folder), daemon=True).start()
    try:
        answers = load()
    except UserError as error:
        connection.sendall(framing.pack({"unusable": str(error)}))
        return
    connection.sendall(framing.pack({"ready": True}))
    while True:
        connection.sendall(framing.pack(answers(inbox.get())))


def _receive(connection: socket.socket, inbox: "SimpleQueue[Any]", folder: Path) -> None:
    with connection.makefile("rb") as stream:
        while True:
            try:
                inbox.put(framing.receive(stream.read))
            except (OSError, EOFError):  # the server has ended, so no answer is expected
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)
