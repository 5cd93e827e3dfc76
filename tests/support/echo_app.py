"""An application of a few lines to stand behind a guard, and a client that needs no server."""

import asyncio
import json
from typing import Any

import httpx

from skindx.ui.http.asgi import USER, App, Message, Receive, Send, respond


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    """Tell who came, and how many bytes."""
    size = 0
    while scope["method"] == "POST":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await respond(send, 200, json.dumps([scope.get(USER), size]).encode(), "application/json")


def ask(app: App, method: str, path: str, **options: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asked())
