"""Security headers of every answer: no other hosts, no foreign frames, no caching."""

import logging
import re
import time
from collections.abc import Sequence

from skindx.ui.asgi import App, Message, Receive, Send

access = logging.getLogger("skindx.access")

_KEPT = ("/assets/", "/static/", "/svelte/", "/theme.css", "/favicon.ico")
"""Parts of Gradio's front end: the same for all, so a browser may keep them."""


def _policy(frames: Sequence[str]) -> str:
    # Gradio's front end needs inline scripts and styles; everything else is of this server alone.
    return "; ".join(
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
            f"frame-ancestors {' '.join(frames) or chr(39) + 'none' + chr(39)}",
        )
    )


class Headers:
    """ASGI middleware around everything: security headers, and a line in the access log.

    Headers by which pages of other sites may read an answer (CORS) are taken away: Gradio allows
    whatever runs on another port of this machine.

    `frames` are the sites that may show the page in a frame of theirs.
    """

    def __init__(self, app: App, frames: Sequence[str] = ()) -> None:
        self.app = app
        self._fields = {
            b"content-security-policy": _policy(frames).encode(),
            b"cross-origin-resource-policy": b"same-origin",
            b"permissions-policy": b"camera=(self), microphone=(), geolocation=()",
            # Under no-referrer a browser sends its own forms as of origin null, and the gate, which
            # refuses what other sites send, could block every login.
            b"referrer-policy": b"same-origin",
            b"x-content-type-options": b"nosniff",
        }
        if not frames:
            self._fields[b"cross-origin-opener-policy"] = b"same-origin"
            self._fields[b"x-frame-options"] = b"DENY"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on; put the headers over whatever was answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500
        fields = dict(self._fields)
        if not scope["path"].startswith(_KEPT):
            fields[b"cache-control"] = b"no-store"
        if scope.get("scheme") == "https":
            fields[b"strict-transport-security"] = b"max-age=31536000"

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                others = [
                    (name, value)
                    for name, value in message.get("headers", ())
                    if name not in fields and not name.lower().startswith(b"access-control-")
                ]
                message["headers"] = [*others, *fields.items()]
            await send(message)

        try:
            await self.app(scope, receive, guarded)
        finally:
            took_ms = 1000 * (time.perf_counter() - start)
            access.info("%s %s %d %.0f ms", scope["method"], route(scope["path"]), status, took_ms)


def route(path: str) -> str:
    """Return a path as a log may hold it: no file, no session, nothing that a client made up."""
    known = re.match(r"/(gradio_api/(queue/)?[a-z_]+|v1/[a-z]+|[a-z_.]*)(?=[/=]|$)", path)
    return known.group(0) if known else "/..."
