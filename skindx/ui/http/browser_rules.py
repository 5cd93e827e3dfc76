"""Rules for browsers: host names that the server accepts, and security headers of every answer.

DNS rebinding: a site that a user visits maps its own name to this machine's address. The browser
then takes this server for that site and lets its scripts read every answer. The name that the
browser asked for stands in the Host header, so unknown names are refused. An IP address cannot be
mapped to another machine, so addresses are answered where the network may reach them.
"""

import ipaddress
import logging
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from skindx.core.errors import UserError
from skindx.ui.http.asgi import NAMED, App, Message, Receive, Send, headers, refuse

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_LONGEST = 253


class HostCheck:
    """ASGI middleware that refuses (421) requests for a name that is not this server's.

    `host` is the address that the server listens on, `allowed` further names or addresses. Raises
    UserError for an allowed name that is no host name.
    """

    def __init__(self, app: App, host: str, allowed: Sequence[str] = ()) -> None:
        self.app = app
        self._names = {"localhost", host.lower(), *(_checked(name) for name in allowed)}
        self._any_address = not is_loopback(host)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on requests for this server."""
        if scope["type"] == "http":
            hosts = headers(scope, b"host")
            named = [*hosts, *scope.get(NAMED, ())]
            # HTTP/1.0 knows no Host, and checks of health use it; every browser sends one.
            old = scope.get("http_version") == "1.0" and not hosts
            wrong = [name for name in named if not self._is_ours(host_name(name))]
            if wrong or (len(hosts) != 1 and not old):
                await refuse(send, 421, _refusal(wrong or hosts), {"connection": "close"})
                return
        await self.app(scope, receive, send)

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback or str(address) in self._names


def host_name(header: str) -> str:
    """Return the name or address of a Host header in lower case, without port; "" for neither."""
    name, port = header.strip().lower(), ""
    if name.startswith("["):
        name, _, port = name[1:].partition("]")
        if "." not in name and ":" not in name:
            return ""
        port = port.removeprefix(":")
    else:
        name, _, port = name.partition(":")
    return name.removesuffix(".") if port == "" or port.isdigit() else ""


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on can be reached from this machine alone."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # a name with an empty part cannot even be asked for
        return False
    return all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in entries)


def _checked(name: str) -> str:
    ours = name.strip().lower().removesuffix(".")
    with suppress(ValueError):
        return str(ipaddress.ip_address(ours.strip("[]")))
    if len(ours) > _LONGEST or not _NAME.fullmatch(ours):
        raise UserError(
            f"--allowed-host {name!r} is not a host name; give only a name such as "
            "skin.example.org, without https:// and without a port."
        )
    return ours


def _refusal(named: Sequence[str]) -> str:
    shown = host_name(named[0]) if len(named) == 1 else ""
    if not _NAME.fullmatch(shown) or len(shown) > _LONGEST:
        return "The request does not say which host it is for."
    return (
        f"This server does not answer to the name {shown}; the operator can allow it: "
        f"skindx serve BUNDLE --allowed-host {shown}"
    )


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
                remaining = [
                    (name, value)
                    for name, value in message.get("headers", ())
                    if name not in fields and not name.lower().startswith(b"access-control-")
                ]
                message["headers"] = [*remaining, *fields.items()]
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
