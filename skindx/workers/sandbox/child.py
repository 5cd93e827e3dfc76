"""The sandboxed process: paths come in on standard input, signs of life and answers go out.

Its limits are the kernel's, so that they hold in the middle of a C library, and also when the
caller is gone: a data segment of fixed size and an alarm clock.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from skindx.workers import framing
from skindx.workers.process import limit_memory, limit_time
from skindx.workers.sandbox.functions import Work, prepare, resolve

READY = "ready"
DONE = "done"
"""Sent after each file; then the answers to a whole batch are sent as one list."""


def main() -> int:
    """Answer batches until standard input ends."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides, by closing our input
    job = framing.receive(sys.stdin.buffer.read)
    make_work = resolve(job["function"])
    prepare(make_work)
    work = make_work(job["job"])
    gc.freeze()  # nothing of what was imported is ever garbage
    limit_memory(job["memory_mb"])
    answers.write(framing.pack(READY))
    while True:
        try:
            paths = framing.receive(sys.stdin.buffer.read)
        except EOFError:
            return 0
        _answer(work, [Path(path) for path in paths], job["timeout_s"], answers)


def _answer(work: Work, paths: Sequence[Path], timeout_s: int, answers: BinaryIO) -> None:
    limit_time(timeout_s)  # each sign of life puts the end off
    for answer in work(paths):
        limit_time(timeout_s if answer is None else 0)
        answers.write(framing.pack(DONE if answer is None else answer))
