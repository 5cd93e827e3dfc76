"""What all servers of pages share: addresses, private uploads, a clean end, logs, templates.

Unexpected errors are logged by their type and where they happened, without their messages: a
message may repeat what a person sent, such as names of photos, notes, age and site. Templates
escape whatever a bundle, a file name or an error says.
"""

import base64
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from skindx.core.atomic_files import private_folder
from skindx.core.errors import UserError
from skindx.core.text import html_environment, keep_units
from skindx.texts.catalogue import count_text, spoken, text, word

if TYPE_CHECKING:
    import gradio as gr
    from _typeshed import SupportsWrite
    from jinja2 import Environment


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


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_free(host: str, port: int) -> None:
    """Raise UserError for a port that does not exist or is taken, and for a wrong address."""
    if not 1 <= port <= 65535:
        raise UserError(f"--port {port} is not possible; give a port from 1 to 65535.")
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"the page cannot listen on {host}:{port} ({reason}); give another --port, or an "
            "address of this machine as --host."
        ) from None


@contextmanager
def uploads_folder() -> Iterator[Path]:
    """Give Gradio a folder that only this user can read, and that goes with the server."""
    with private_folder("skindx-uploads-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        yield folder


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM end the server as Ctrl+C does, so that the uploads are deleted."""

    def stop(number: int, frame: FrameType | None) -> None:
        if any(above.f_code.co_name == "__del__" for above, _ in traceback.walk_stack(frame)):
            # There an exception is printed and lost: the signal comes again when it is over.
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        else:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def theme() -> "gr.themes.Base":
    """Return a quiet theme in the reader's own fonts: Gradio's would be fetched."""
    import gradio as gr
    from gradio.themes.utils.fonts import Font

    names = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif")
    return gr.themes.Base(
        primary_hue="teal",
        neutral_hue="slate",
        radius_size="sm",
        font=[Font(name) for name in names],
        font_mono=[Font("ui-monospace"), Font("Consolas"), Font("monospace")],
    )


def gradio_options() -> dict[str, Any]:
    """Return the options of every Gradio page: no storage in the browser, no analytics."""
    return {
        "show_error": False,
        "run_history": False,  # it would write photos' addresses into the browser's storage
        "footer_links": [],
        "enable_monitoring": False,
        "mcp_server": False,
        "ssr_mode": False,
        "pwa": False,
        "theme": theme(),
    }


def render(template: str, **values: Any) -> str:
    """Return a template filled in; a value that it misses is an error, never a gap."""
    return keep_units(_environment().get_template(template).render(**values))


def data_url(data: bytes, kind: str) -> str:
    """Return bytes as an address that holds them: no file is kept for the browser to fetch."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def sentence(message: str) -> str:
    """Return a message with a capital letter at its start."""
    return message[:1].upper() + message[1:]


@cache
def _environment() -> "Environment":
    from skindx.data.publish.published_rows import web_address

    environment = html_environment("skindx.ui")
    environment.filters["web_address"] = web_address
    environment.globals |= {"text": text, "word": word, "spoken": spoken}
    environment.globals["count"] = count_text
    return environment


_STYLES = ("tokens", "shell", "intake", "result", "why", "scan", "many", "book", "media")


def styles() -> str:
    """Return the page's styles, which `top_html` writes into the page: Gradio is given none."""
    return "\n".join(_read(f"{name}.css") for name in _STYLES)


def script(*names: str) -> str:
    """Return what runs in the browser for one part of the page: its files, after the sentences."""
    return "\n".join(_read(f"{name}.js") for name in ("say", *names))


def _read(name: str) -> str:
    return resources.files("skindx.ui.page").joinpath("assets", name).read_text(encoding="utf-8")
