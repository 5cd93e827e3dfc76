"""Clean end of a bench that is stopped: only saved results remain, and what was measured so far."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


def end_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit here, so that what it started ends or saves its state."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


@dataclass
class Stopped:
    """Why figures are missing; empty while nothing was stopped."""

    partial: str = ""


@contextmanager
def kept_when_stopped(doing: str) -> Iterator[Stopped]:
    """End the block at Ctrl-C, so that what it has filled until then can be reported as partial."""
    stopped = Stopped()
    try:
        yield stopped
    except KeyboardInterrupt:
        stopped.partial = f"stopped while {doing}"
