"""What all pages share: a free address, private uploads, a clean end, fonts, templates, styles.

Templates escape whatever a bundle, a file name or an error says.
"""

import base64
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.atomic_files import private_folder
from skindx.core.errors import UserError
from skindx.core.text import html_environment, keep_units

if TYPE_CHECKING:
    import gradio as gr
    from jinja2 import Environment


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_free(host: str, port: int) -> None:
    """Raise UserError for a port that does not exist or is taken, and for a wrong address."""
    if not 1 <= port <= 65535:
        raise UserError(f"port {port} does not exist; give one from 1 to 65535.")
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"the page cannot listen on {host}:{port} ({reason}); "
            "give another --port, or this machine's own --host."
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

    def stop(*_: object) -> None:
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
    return environment


_STYLES = ("tokens", "shell", "intake", "result", "why", "scan", "book")


def styles() -> str:
    """Return the page's styles, which `top_html` writes into the page: Gradio is given none."""
    return "\n".join(_read(f"{name}.css") for name in _STYLES)


def script(name: str) -> str:
    """Return what runs in the browser for one part of the page."""
    return _read(f"{name}.js")


def _read(name: str) -> str:
    return resources.files("skindx.ui.page").joinpath("assets", name).read_text(encoding="utf-8")
