"""Run an application under uvicorn: limits on connections, trusted proxies, a clean end."""

import asyncio
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from skindx.ui.asgi import App
from skindx.ui.connections import Patience, PatientProtocol, protocol
from skindx.ui.forwarding import Forwarding

_GRACE_S = 3
"""A request may take so long to end when the server is stopped."""
_CHECK_TICKS = 10
"""Of uvicorn's clock, which ticks ten times a second."""
_OTHER_FILES = 512
"""Files that the server has open beside its connections, at most."""


@dataclass(frozen=True)
class Listening:
    """Address of a server, and what its clients may do."""

    host: str
    port: int
    proxy: str | None = None
    """Addresses, by commas, whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    patience: Patience = field(default_factory=Patience)
    root: str = ""
    """The server's folder in the addresses of browsers, such as "/skin"."""


def run(app: App, listening: Listening, greet: Callable[[], None]) -> None:
    """Serve until Ctrl+C or SIGTERM; `greet` is called when requests can come.

    Raises what the application's startup raised.
    """
    _allow_files(listening.patience.total + _OTHER_FILES)
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
        http=protocol(listening.patience, forwarding.trusts),
        log_config=None,
        log_level="critical",  # we report what fails to start, in one sentence
        access_log=False,  # its lines would hold queries
        proxy_headers=False,  # `Forwarding` reads them, and sees the proxy's own address
        server_header=False,
        limit_concurrency=listening.patience.total + 1,
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
