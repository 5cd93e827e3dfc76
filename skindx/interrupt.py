"""Ctrl-C while modules are being imported.

Raised in the middle of an import, KeyboardInterrupt is lost: libraries catch it, or go on with half
a module and fail later by an error that nobody understands.
"""

import os
import signal
import sys
from types import FrameType
from typing import Any

STOPPED = "stopped; run the same command again to go on"
"""What a command says that Ctrl-C ended."""

_COMMAND_LINE = ("skindx.__main__", "skindx.cli", "__main__")


def heed_interrupts() -> None:
    """Let Ctrl-C act at once or right after an import; call it first in a command's process.

    A process that ignores Ctrl-C, as in a shell's background, goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    importer = _importer(frame)
    if importer is None:
        raise KeyboardInterrupt
    name = str(importer.f_globals.get("__name__"))
    if name.startswith(_COMMAND_LINE) or importer.f_trace is not None:
        # A verb imports before it begins its work, so that nothing has to be put away. The second
        # Ctrl-C does not wait either.
        os.write(sys.stderr.fileno() if sys.stderr else 2, f"{STOPPED}\n".encode())
        os._exit(128 + number)
    importer.f_trace = _raise
    sys.settrace(_ignore)  # without one the frame's is not called


def _importer(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the outermost import that is under way; None where none is."""
    found, below = None, frame
    while below is not None:
        above = below.f_back
        if above is not None and _is_machinery(below) and not _is_machinery(above):
            found = above
        below = above
    return found


def _is_machinery(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def _ignore(frame: FrameType, event: str, argument: Any) -> None:
    """Trace no other frame."""


def _raise(frame: FrameType, event: str, argument: Any) -> None:
    """Raise what was asked for during the import that this frame has done."""
    frame.f_trace = None
    sys.settrace(None)
    raise KeyboardInterrupt
