"""Clean end of a bench that is stopped: only saved results remain."""

import signal
import sys
import threading


def end_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit here, so that what it started ends or saves its state."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
