"""A server of this process around an application of a few lines, for clients of raw sockets."""

import asyncio
import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse

from served import free_port

from skindx.ui.http.asgi import App, Message, Receive, Send, read_body, respond
from skindx.ui.http.server import ConnectionTimeouts, Listening, make_server

LARGE = 64 << 20
"""Bytes of the answer at /large: more than the kernel buffers for a client that does not read."""


async def simple(scope: Message, receive: Receive, send: Send) -> None:
    """Answer /large with many bytes, /hold after a while, and else with the length of the body."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["path"] == "/large":
        await respond(send, 200, bytes(LARGE))
    elif scope["path"] == "/refuse":
        await respond(send, 401, b"no")
    else:
        if scope["path"] == "/hold":
            await asyncio.sleep(1)
        body = await read_body(receive, 1 << 20)
        await respond(send, 200, f"{len(body or b'')} bytes".encode())


@contextmanager
def running(
    app: App, timeouts: ConnectionTimeouts, proxy: str | None = None, root: str = ""
) -> Iterator[int]:
    """Serve on loopback until the block ends; yield the port."""
    port, ready = free_port(), threading.Event()
    server = make_server(app, Listening("127.0.0.1", port, proxy, timeouts, root), ready.set)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert ready.wait(30)
        yield port
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


class Client:
    """One connection from a chosen loopback address."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20, (source, 0))
        weakref.finalize(self, self._socket.close)  # a test need not close its crowds

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def get(self, path: str = "/", *headers: str) -> int:
        """Return the status of an answer; 0 where the connection is closed instead."""
        lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]
        try:
            self.send("\r\n".join(lines).encode())
            answer = HTTPResponse(self._socket)
            answer.begin()
            answer.read()
        except (OSError, HTTPException):
            return 0
        return answer.status

    def ended_after_s(self, within_s: float = 20.0, trickle: bytes = b"") -> float:
        """Return after how long the server ends the connection, sending now and then a byte."""
        start = time.monotonic()
        self._socket.settimeout(0.05)
        while time.monotonic() - start < within_s:
            with contextlib.suppress(TimeoutError):
                try:
                    if trickle:
                        self._socket.sendall(trickle)
                    if not self._socket.recv(1 << 16):
                        return time.monotonic() - start
                except ConnectionError:
                    return time.monotonic() - start
        raise AssertionError(f"the connection is still open after {within_s} s")

    def closed_without_reading_after_s(self, within_s: float = 20.0) -> float:
        """Return after how long the server resets a connection of which nothing is read."""
        start = time.monotonic()
        while time.monotonic() - start < within_s:
            try:
                self._socket.send(b"x")  # fails only when the other side is gone
            except OSError:
                return time.monotonic() - start
            time.sleep(0.05)
        raise AssertionError(f"the connection is still open after {within_s} s")

    def read_all(self) -> bytes:
        """Return what comes until the server closes, or is silent for two seconds."""
        self._socket.settimeout(2)
        came = b""
        with contextlib.suppress(OSError):
            while piece := self._socket.recv(1 << 16):
                came += piece
        return came

    def close(self) -> None:
        """End the connection."""
        self._socket.close()
