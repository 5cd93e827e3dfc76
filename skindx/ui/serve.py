"""Run the page as a web server: private uploads, no account, no outside host, a clean end."""

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.diagnosis.opening import MAX_BYTES
from skindx.diagnosis.predictor import Predictor
from skindx.errors import UserError
from skindx.offline import go_offline

if TYPE_CHECKING:
    import gradio as gr

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    bundle: Path, *, host: str = "127.0.0.1", port: int = 7860, open_browser: bool = False
) -> None:
    """Serve the diagnosis page until Ctrl+C or SIGTERM.

    Raises UserError for a bundle that is not whole, and for an address that is taken or wrong.
    """
    go_offline()
    _check_free(host, port)
    import torch

    # One picture is too little work to share: threads wait at barriers, many times as long when
    # anything else runs on the machine.
    torch.set_num_threads(1)
    predictor = Predictor.load(bundle)
    with _uploads_folder(), _stoppable():
        from starlette.middleware import Middleware

        from skindx.ui.guard import Guard
        from skindx.ui.page import build_page

        _reach_itself_directly(host)
        page = build_page(predictor)
        _, url, _ = page.launch(
            server_name=host,
            server_port=port,
            inbrowser=open_browser,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            show_error=False,
            max_file_size=MAX_BYTES,
            state_session_capacity=100,  # each holds what its tab shows
            run_history=False,
            footer_links=[],
            enable_monitoring=False,
            mcp_server=False,
            ssr_mode=False,
            pwa=False,
            theme=theme(),
            css=resources.files("skindx.ui").joinpath("page.css").read_text(encoding="utf-8"),
            app_kwargs={"middleware": [Middleware(Guard)], "openapi_url": None},
        )
        reach = "" if host in _LOOPBACK else " Everyone who reaches this machine can use it."
        print(f"skindx is at {url} (Ctrl+C stops it).{reach}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            page.close(verbose=False)


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


def _check_free(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise UserError(f"port {port} does not exist; give one from 1 to 65535.")
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"the page cannot listen on {host}:{port} ({reason}); "
            "give another --port, or this machine's own --host."
        ) from None


@contextmanager
def _uploads_folder() -> Iterator[None]:
    """Give Gradio a folder that only this user can read, and that goes with the server."""
    with tempfile.TemporaryDirectory(prefix="skindx-uploads-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        yield


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM end the server as Ctrl+C does, so that the uploads are deleted."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _reach_itself_directly(host: str) -> None:
    """Keep Gradio's question to its own server, whether it is up, from going through a proxy."""
    for variable in ("NO_PROXY", "no_proxy"):
        known = os.environ.get(variable, "")
        os.environ[variable] = ",".join(filter(None, (known, *_LOOPBACK, host)))
