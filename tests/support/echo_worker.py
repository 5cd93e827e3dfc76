"""A worker that answers at once; a question says what is to be done with it."""

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.workers.worker_process import Answers, serve


def answer(question: Any) -> Any:
    if question == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if question == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if question in ("hang", b"hang"):
        time.sleep(600)
    if question == "pid":
        return os.getpid()
    return question


def load() -> Answers:
    if "unusable" in sys.argv:
        raise UserError("the model is damaged.")
    return lambda questions: [answer(question) for question in questions]


if __name__ == "__main__":
    descriptor, folder = sys.argv[-2:]
    with socket.socket(fileno=int(descriptor)) as connection:
        serve(connection, Path(folder), load)
