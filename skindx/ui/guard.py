"""What stands before Gradio: only the routes the page needs, and no way to any other host.

Gradio serves more than a page: it hands out uploaded files by their path, and fetches addresses
that a request names. Nothing here needs either, so neither gets through.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_API = "/gradio_api/"
_NEEDED = (
    "app_id",
    "cancel",
    "heartbeat/",
    "login_check",
    "queue/data",
    "queue/join",
    "reset",
    "startup-events",
    "theme.css",
    "upload",
    "upload_progress",
)
_JOIN_BYTES = 1 << 20

# The front end asks for the picture that it has just uploaded, to show it while it waits.
_WAITING = (
    b'<svg xmlns="http://www.w3.org/2000/svg" width="320" height="200">'
    b'<text x="160" y="100" text-anchor="middle" font-family="sans-serif" font-size="16" '
    b'fill="#7a8794">Looking at the picture ...</text></svg>'
)

# Gradio's front end needs inline scripts and styles; everything else is of this server alone.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    )
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
)


class Guard:
    """ASGI middleware around Gradio's app."""

    def __init__(self, app: App, also: tuple[str, ...] = ()) -> None:
        """Let through what every page needs, and `also` these routes of Gradio's."""
        self.app = app
        self.needed = _NEEDED + also

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        route = scope["path"].partition(_API)[2]
        if route.startswith("file="):
            await _respond(send_guarded, 200, b"image/svg+xml", _WAITING)
        elif _API in scope["path"] and not route.startswith(self.needed):
            await _respond(send_guarded, 404, b"text/plain", b"not found")
        elif route.startswith("queue/join"):
            body = await _read(receive)
            if body is None or _names_an_address(body):
                await _respond(send_guarded, 400, b"text/plain", b"only uploaded pictures are read")
            else:
                await self.app(scope, _replay(body, receive), send_guarded)
        else:
            await self.app(scope, receive, send_guarded)


async def _respond(send: Send, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _read(receive: Receive) -> bytes | None:
    """Return the body of a request; None for one that is too long or breaks off."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > _JOIN_BYTES:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was read already, then whatever follows."""
    unread = [body]

    async def replay() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return replay


def _names_an_address(body: bytes) -> bool:
    """Tell whether a file in the request is an address, which Gradio would fetch."""
    try:
        pending: list[Any] = [json.loads(body)]
    except (ValueError, RecursionError):
        return True
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            path = value.get("path")
            if path is not None and (not isinstance(path, str) or "://" in path):
                return True
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False
