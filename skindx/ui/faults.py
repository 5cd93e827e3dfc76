"""Unexpected errors in the log: their type and where they happened, without their messages.

A message may repeat what a person sent: names of photos, notes, age and site.
"""

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

FAILED = "Something went wrong on the server; try again, or tell the operator of this page."
"""What a person reads after an unexpected error."""


def log_fault(log: logging.Logger, what: str, error: BaseException) -> None:
    """Log an unexpected error by its type and by the code that it went through."""
    log.error("%s: %s", what, where(error))


def where(error: BaseException) -> str:
    """Return types and code positions of an error and of its causes, without their messages."""
    lines = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = traceback.extract_tb(cause.__traceback__)
        path = "".join(f"\n  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        lines.append(f"{type(cause).__qualname__}{path}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\ncaused by ".join(lines)


def hide_messages() -> None:
    """Keep messages out of every traceback that this process writes of itself.

    Threads, event loops and libraries report uncaught exceptions through these hooks.
    """
    sys.excepthook = _report
    threading.excepthook = _report_thread
    traceback.print_exc = _print_exc  # Gradio's way to report what an event's function raised
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Formatter())


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        text = super().formatMessage(record)
        # The lines that asyncio adds show objects, with the message of a task's exception.
        return text.partition("\n")[0] if record.name == "asyncio" else text

    def formatException(  # noqa: N802 (logging's name)
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        return where(ei[1]) if ei[1] is not None else ""


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print(where(error), file=sys.stderr)


def _print_exc(
    limit: int | None = None, file: "SupportsWrite[str] | None" = None, chain: bool = True
) -> None:
    error = sys.exception()
    if error is not None:
        print(where(error), file=file or sys.stderr)


def _report_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None:
        print(where(failed.exc_value), file=sys.stderr)
