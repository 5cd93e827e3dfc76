"""An application under uvicorn: deadlines for connections, trusted proxies, a clean end.

uvicorn ends only a connection that rests between two requests. A client that connects and sends
nothing, sends half a header, trickles a body that is not read, or does not read its answer would
hold its connection for ever. Only a proxy that `--proxy` names is believed. What anyone else sends
of its headers is taken away, so that nothing behind this file, Gradio among it, builds an address
from it.
"""

import asyncio
import re
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from skindx.core.errors import UserError
from skindx.ui.http.asgi import NAMED, ROOT, App, Message, Receive, Send, header, headers, respond
from skindx.ui.http.request_limits import PER_ADDRESS, ConnectionQuota, network

_FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True)
class ConnectionTimeouts:
    """How long connections may wait for their clients, and how many of them there may be."""

    header_s: float = 10.0
    """Longest time for a request's header, from connecting or from the last answer."""
    stalled_s: float = 20.0
    """An answer has to move on within this time ..."""
    bytes_per_s: float = 1024.0
    """... at this mean rate."""
    per_address: int = PER_ADDRESS
    total: int = 1000


class PatientProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, with deadlines; `check` has to be called about once a second."""

    timeouts: ConnectionTimeouts
    quota: ConnectionQuota
    is_proxy: Callable[[str], bool]

    def connection_made(self, transport: Any) -> None:
        """Take a connection, or end it where its address or all together have too many."""
        self._entered = False
        super().connection_made(transport)
        self._waits_since = time.monotonic()
        self._unsent: tuple[float, int] | None = None
        address = self.client[0] if self.client else ""
        # A proxy brings the requests of many clients; `RequestQuota` separates them.
        self._address = "" if self.is_proxy(address) else network(address)
        exceeded = self.quota.exceeded(self._address, 1)
        if exceeded == "total" or (exceeded and self._address):
            self._end(_FULL)
            return
        self._entered = True
        self.quota.add(self._address, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self._entered:
            self._entered = False
            self.quota.add(self._address, -1)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, unless the connection is being ended."""
        if not self.transport.is_closing():
            super().data_received(data)

    def on_response_complete(self) -> None:
        """Count from here how long the next request takes."""
        self._waits_since = time.monotonic()
        super().on_response_complete()

    def check(self, now: float) -> None:
        """End the connection if its client is too slow."""
        if self._is_stalled(now):
            self.transport.abort()
        elif self._is_between_requests and now - self._waits_since > self.timeouts.header_s:
            if self.transport.is_closing():
                return
            half = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            self._end(_LATE if half else b"")

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_stalled(self, now: float) -> bool:
        """Tell whether what is to be sent has moved on too slowly."""
        size = self.transport.get_write_buffer_size()
        if not size:
            self._unsent = None
        elif self._unsent is None:
            self._unsent = now, size
        elif now - self._unsent[0] >= self.timeouts.stalled_s:
            since, before = self._unsent
            self._unsent = now, size
            return before - size < self.timeouts.bytes_per_s * (now - since)
        return False

    def _end(self, answer: bytes) -> None:
        if answer:
            self.transport.write(answer)
        self.transport.close()


def protocol(
    timeouts: ConnectionTimeouts, is_proxy: Callable[[str], bool]
) -> type[PatientProtocol]:
    """Return the protocol of one server; connections from proxies are counted together."""
    quota = ConnectionQuota(timeouts.per_address, timeouts.total)
    fields = {"timeouts": timeouts, "quota": quota, "is_proxy": staticmethod(is_proxy)}
    return type("ServerProtocol", (PatientProtocol,), fields)


_FOLDER = re.compile(r"(/[A-Za-z0-9_~][A-Za-z0-9._~-]*)+")
_LONGEST = 200
_OURS = ("assets", "config", "docs", "gradio_api", "healthz", "login", "logout", "openapi.json",
         "report", "static", "svelte", "v1")  # fmt: skip
_FORWARDED = (b"forwarded", b"x-gradio-server")
_TRUSTED = "skindx_trusted"


class Forwarding:
    """ASGI middleware around everything else.

    `proxy` are the addresses, by commas, that are believed; `root` is the folder of this server in
    the addresses of browsers, such as "/skin"; "": the proxy's X-Forwarded-Prefix says it, or there
    is none. The proxy may take the folder off the path before it passes a request on, or leave it.
    """

    def __init__(self, app: App, proxy: str | None, root: str = "") -> None:
        self._app, self._root = app, root
        named = ProxyHeadersMiddleware(self._forwarded, proxy or [])  # type: ignore[arg-type]
        self._named, self._trusted = named, named.trusted_hosts

    def trusts(self, address: str) -> bool:
        """Tell whether an address is a proxy's that is believed."""
        return address in self._trusted

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on as its client sent it to the proxy."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = (scope.get("client") or ("",))[0]
        await self._named({**scope, _TRUSTED: self.trusts(client)}, receive, send)  # type: ignore[arg-type]

    async def _forwarded(self, scope: Message, receive: Receive, send: Send) -> None:
        named, root = [], self._root
        if scope.pop(_TRUSTED):
            names = ",".join(headers(scope, b"x-forwarded-host"))
            named = [name.strip() for name in names.split(",") if name.strip()]
            root = root or _folder(header(scope, b"x-forwarded-prefix"))
        kept = [
            (name, value)
            for name, value in scope["headers"]
            if not name.startswith(b"x-forwarded-") and name not in _FORWARDED
        ]
        path = scope["path"]
        if root and path == root:
            query = scope.get("query_string", b"").decode("latin-1")
            location = f"{root}/{'?' if query else ''}{query}"
            await respond(send, 308, b"", headers={"location": location})
            return
        if root and path.startswith(f"{root}/"):
            path = path[len(root) :]
        shown = named[0] if named else header(scope, b"host")
        if shown and (named or root):
            # Gradio builds its page's addresses from these two.
            kept.append((b"x-forwarded-host", f"{shown}{root}".encode("latin-1")))
            kept.append((b"x-forwarded-proto", str(scope.get("scheme", "http")).encode()))
        changed = {"headers": kept, "path": path, "raw_path": path.encode(), NAMED: named}
        await self._app({**scope, **changed, ROOT: root}, receive, send)


def checked_root(root: str) -> str:
    """Return the folder of a server as `Forwarding` takes it. Raises UserError."""
    ours = "/" + root.strip().strip("/")
    if ours == "/":
        return ""
    if not _folder(ours):
        raise UserError(
            f"--root-path {root!r} is not a URL path; give a path such as /skin (letters, digits "
            "and . _ ~ - between slashes)."
        )
    if ours.split("/")[1] in _OURS:
        raise UserError(f"--root-path {root!r} is already a path of the server; give another path.")
    return ours


def _folder(value: str) -> str:
    """Return a folder that may be written into pages and headers; "" for anything else."""
    ours = value.strip().rstrip("/")
    return ours if len(ours) <= _LONGEST and _FOLDER.fullmatch(ours) else ""


_GRACE_S = 3
"""A request may take so long to end when the server is stopped."""
_CHECK_TICKS = 10
"""Ticks of uvicorn's clock between two checks; it ticks ten times a second."""
_OTHER_FILES = 512
"""Files that the server has open beside its connections, at most."""


@dataclass(frozen=True)
class Listening:
    """Address of a server, and what its clients may do."""

    host: str
    port: int
    proxy: str | None = None
    """Addresses, by commas, whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    timeouts: ConnectionTimeouts = field(default_factory=ConnectionTimeouts)
    root: str = ""
    """The server's folder in the addresses of browsers, such as "/skin"."""


def run(app: App, listening: Listening, greet: Callable[[], None]) -> None:
    """Serve until Ctrl+C or SIGTERM; `greet` is called when requests can come.

    Raises what the application's startup raised.
    """
    _allow_files(listening.timeouts.total + _OTHER_FILES)
    failure: list[BaseException] = []
    server = make_server(_keeping_failure(app, failure), listening, greet)
    with suppress(KeyboardInterrupt):
        server.run()
    if failure:
        raise failure[0]


def make_server(app: App, listening: Listening, greet: Callable[[], None]) -> uvicorn.Server:
    """Return a server that is not started yet."""
    forwarding = Forwarding(app, listening.proxy, listening.root)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                greet()

        async def on_tick(self, counter: int) -> bool:
            if counter % _CHECK_TICKS == 0:
                now = time.monotonic()
                for connection in tuple(self.server_state.connections):
                    if isinstance(connection, PatientProtocol):
                        connection.check(now)
            return await super().on_tick(counter)

    config = uvicorn.Config(
        forwarding,
        host=listening.host,
        port=listening.port,
        http=protocol(listening.timeouts, forwarding.trusts),
        log_config=None,
        log_level="critical",  # we report what fails to start, in one sentence
        access_log=False,  # its lines would hold queries
        proxy_headers=False,  # `Forwarding` reads them, and sees the proxy's own address
        server_header=False,
        limit_concurrency=listening.timeouts.total + 1,
        timeout_graceful_shutdown=_GRACE_S,
        ws="none",
        lifespan="on",
    )
    return Server(config)


def _keeping_failure(app: App, failure: list[BaseException]) -> App:
    """Return the application; why its startup failed goes to `failure`, uvicorn would lose it."""

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            failure.append(error)
            raise

    return whole


def _allow_files(most: int) -> None:
    """Let this process open so many files where it may: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < most:
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
