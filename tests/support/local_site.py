"""A small web server on loopback that answers from a table, records requests, and can lie."""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass
class Answer:
    """A whole, honest answer; lies are functions that write to the socket themselves."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0


Lie = Callable[[BaseHTTPRequestHandler], None]
Page = Answer | Lie | list[Answer]
"""A list is answered one by one, its last element for ever."""


class LocalSite:
    """Serves `pages` by path on a port of its own; `default` answers every other path."""

    def __init__(
        self, pages: dict[str, Page] | None = None, default: Page | None = None, port: int = 0
    ) -> None:
        self.pages: dict[str, Page] = pages or {}
        self.default = default or Answer(b"not here", 404)
        self.asked: list[str] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self.port = self._server.server_port
        self.netloc = f"127.0.0.1:{self.port}"
        self.origin = f"http://{self.netloc}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()

    def wait(self, seconds: float) -> None:
        """Sleep in an answer, but never longer than the test lasts."""
        self._ending.wait(seconds)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self._now += 1
            self.at_once = max(self.at_once, self._now)
            self.asked.append(request.path)
            self.times.append(time.monotonic())
            self.headers.append({key.lower(): value for key, value in request.headers.items()})
            page = self.pages.get(request.path, self.default)
            if isinstance(page, list):
                page = page.pop(0) if len(page) > 1 else page[0]
        if not isinstance(page, Answer):
            with self._lock:
                self._now -= 1
            page(request)
            return
        self.wait(page.after_s)
        request.send_response(page.status)
        for key, value in {"Content-Length": str(len(page.body)), **page.headers}.items():
            request.send_header(key, value)
        request.end_headers()
        with self._lock:  # before the last byte: the client cannot be quicker than this count
            self._now -= 1
        request.wfile.write(page.body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Stay silent: clients that hang up are what these tests are about."""


def _handler(site: LocalSite) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            site.answer(self)
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def closed_port() -> int:
    """Return a port of loopback on which nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return int(closed.getsockname()[1])


def jpeg(content: str, size: int = 400) -> bytes:
    """Return bytes that begin as a JPEG does; nobody decodes them here."""
    return b"\xff\xd8\xff\xe0" + content.encode().ljust(size, b"\0")


def html(*parts: str, head: str = "") -> Answer:
    page = f"<html><head>{head}</head><body>{''.join(parts)}</body></html>"
    return Answer(page.encode(), headers={"Content-Type": "text/html; charset=utf-8"})


def figures(*addresses: str) -> str:
    return "".join(
        f'<figure class="picture"><a class="full" href="{address}">x</a>'
        '<span class="licence">CC0</span><span class="creator">A. Painter</span></figure>'
        for address in addresses
    )


def category(path: str, label: str) -> str:
    return f'<a class="category" href="{path}" data-label="{label}">{label} pictures</a>'
