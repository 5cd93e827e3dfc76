"""A client of the routes of scans, in this process."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from fastapi import FastAPI

from skindx.ui.http.asgi import USER, Message, Receive, Send, header
from skindx.ui.http.scan_routes import scan_routes
from skindx.ui.scans.scan_jobs import ScanJobs


def use_scans(
    jobs: Callable[[], ScanJobs], metrics: Any, use: Callable[[httpx.AsyncClient], Awaitable[None]]
) -> None:
    """Use a client of a server with these jobs, which are made inside the event loop.

    Its header `x-user` is the name by which it is logged in.
    """

    async def asked() -> None:
        made = jobs()
        app = FastAPI()
        app.include_router(scan_routes(made, None, metrics))

        async def named(scope: Message, receive: Receive, send: Send) -> None:
            await app({**scope, USER: header(scope, b"x-user")}, receive, send)

        transport = httpx.ASGITransport(app=named)
        async with made, httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            await use(client)

    asyncio.run(asked())
