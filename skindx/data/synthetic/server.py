"""Serve a folder on the loopback address while a block runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError


class _Quiet(SimpleHTTPRequestHandler):
    """Serve files, list no folders, log nothing."""

    def list_directory(self, path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that hangs up early is no fault of the site."""


@contextmanager
def serve_site(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve `folder` on 127.0.0.1 and yield the origin, such as http://127.0.0.1:43211.

    Port 0 takes a free one. Raises UserError when the folder is absent or the port is taken.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; make the site first.")
    try:
        server = _Server(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
    except OSError as error:
        raise UserError(
            f"Port {port} cannot be served ({error.strerror}); give another, or 0 for a free one."
        ) from None
    with server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
