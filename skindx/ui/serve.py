"""Run the server: private uploads, no outside host, a clean end."""

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.errors import UserError
from skindx.models.bundle import open_bundle
from skindx.models.urgent_risk import check_level
from skindx.offline import go_offline
from skindx.ui.listening import LOOPBACK, check_free, stoppable, uploads_folder

if TYPE_CHECKING:
    from skindx.casebook.book import Casebook
    from skindx.ui.asgi import App

_GRACE_S = 3
"""A request may take so long to end when the server is stopped."""
_CONNECTIONS = 1000


def serve(
    bundle: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    workers: int | None = None,
    login: Path | None = None,
    casebook: str | None = None,
    proxy: str | None = None,
    miss_rate: float | None = None,
    access_log: bool = False,
    frames: Sequence[str] = (),
) -> None:
    """Serve page and interface until Ctrl+C or SIGTERM.

    `proxy` are the addresses whose X-Forwarded-For and X-Forwarded-Proto are believed; `frames`
    the sites that may show the page in a frame; `miss_rate` is the level of the urgent risk that
    decides which answers are urgent. Raises UserError for a bundle that is not whole or lacks that
    level, for an address that is taken or wrong, and for a missing extra.
    """
    go_offline()
    check_free(host, port)
    loaded = open_bundle(bundle)
    check_level(loaded.spec.urgent_risk, miss_rate)
    _check_extra()
    from skindx.ui.app import Wiring, build_app
    from skindx.ui.login.users import Users
    from skindx.ui.pool.pool import PoolSettings

    settings = PoolSettings.parse({} if workers is None else {"workers": workers}, "--workers")
    users = Users(login) if login else None
    if access_log:
        _show_access()
    with uploads_folder() as uploads, stoppable():
        wiring = Wiring(uploads, settings, users, _casebook(casebook), frames, miss_rate)
        _run(build_app(loaded, wiring), host, port, proxy, logged_in=users is not None)


def _run(app: "App", host: str, port: int, proxy: str | None, *, logged_in: bool) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                print(_greeting(host, port, logged_in=logged_in), flush=True)

    kept: list[BaseException] = []
    config = uvicorn.Config(
        _keeping_failure(app, kept),
        host=host,
        port=port,
        log_config=None,
        log_level="critical",  # what fails to start is told by us, in one sentence
        access_log=False,  # its lines would hold queries
        proxy_headers=proxy is not None,
        forwarded_allow_ips=proxy or "",
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_S,
        ws="none",
        lifespan="on",
    )
    with suppress(KeyboardInterrupt):
        Server(config).run()
    if kept:
        raise kept[0]


def _keeping_failure(app: "App", kept: list[BaseException]) -> "App":
    """Return the application; why its startup failed is put into `kept`, uvicorn would lose it."""

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            kept.append(error)
            raise

    return whole


def _greeting(host: str, port: int, *, logged_in: bool) -> str:
    shown = f"[{host}]" if ":" in host else host
    reach = ""
    if host not in LOOPBACK:
        who = "who has a login" if logged_in else "who reaches this machine"
        reach = f" Everyone {who} can use it."
        if logged_in:
            reach += " Put a proxy with TLS before it: passwords travel in the clear otherwise."
    return f"skindx is at http://{shown}:{port}/ (Ctrl+C stops it).{reach}"


def _check_extra() -> None:
    from importlib.util import find_spec

    needed = ("fastapi", "gradio", "multipart", "prometheus_client", "uvicorn")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise UserError(f"the server needs {', '.join(missing)}; run `pip install 'skindx[app]'`.")


def _casebook(where: str | None) -> "Casebook | None":
    if where is None:
        return None
    from skindx.casebook.book import Casebook

    return Casebook.open(where)


def _show_access() -> None:
    access = logging.getLogger("skindx.access")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False
