"""The gate before page and interface: in by session or HTTP Basic, everything else is refused."""

import asyncio
import base64
import logging
import math
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, urlsplit

from skindx.core.errors import UserError
from skindx.ui.asgi import (
    NAMED,
    USER,
    App,
    Message,
    Receive,
    Send,
    header,
    headers,
    read_body,
    refuse,
    respond,
    root_of,
)
from skindx.ui.html import render
from skindx.ui.login.sessions import LIFE_S, Remembered, Sessions
from skindx.ui.login.throttle import Throttle
from skindx.ui.login.users import Users

log = logging.getLogger(__name__)

Known = Mapping[str, str]
"""Name -> hash, as the file of users says now."""
COOKIE = "skindx_session"
_FORM_BYTES = 4096
_WRONG = "The name or the password is wrong."
_NO_USERS = "The server cannot read its file of users, so no login is possible; tell its operator."
_FOREIGN = "This request comes from another site's page, so it is not answered."


class Gate:
    """ASGI middleware; with `users` None every request passes, without a name."""

    def __init__(
        self, app: App, users: Users | None, free: Callable[[str], bool] = lambda path: False
    ) -> None:
        self.app, self._users, self._free = app, users, free
        self._sessions, self._remembered = Sessions(), Remembered()
        self._throttle, self._problem = Throttle(), ""
        self._hashing = asyncio.Semaphore(2)  # each takes 32 MB and a core

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer /login and /logout, and pass on requests of logged-in users."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "http" and _is_foreign(scope):
            await refuse(send, 403, _FOREIGN)
            return
        scope[USER] = ""
        if self._users is None or self._free(scope["path"]):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif (known := self._known(self._users)) is None:
            await _no_users(scope, send)
        elif scope["path"].rstrip("/") == "/login":
            await self._login(scope, receive, send, known)
        elif scope["path"].rstrip("/") == "/logout":
            await self._logout(scope, send, known)
        else:
            await self._let_in(scope, receive, send, known)

    def _known(self, users: Users) -> Known | None:
        """Return names and hashes; None where the file cannot be read, and the log says why."""
        try:
            known = users.known()
        except UserError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("logging in is not possible: %s", error)
            return None
        self._problem = ""
        return known

    async def _let_in(self, scope: Message, receive: Receive, send: Send, known: Known) -> None:
        user, wait_s = self._sessions.user(_cookie(scope), known), 0.0
        authorization = header(scope, b"authorization")
        if not user and authorization[:6].lower() == "basic ":
            name, password = _basic(authorization)
            user, wait_s = await self._right(scope, name, password, known)
        if user:
            scope[USER] = user
            await self.app(scope, receive, send)
        elif wait_s:
            await refuse(send, 429, _slow_down(wait_s), _retry(wait_s))
        elif "text/html" in header(scope, b"accept") and scope["method"] in ("GET", "HEAD"):
            await respond(send, 303, b"", headers={"location": f"{root_of(scope)}/login"})
        else:
            asks = {"www-authenticate": 'Basic realm="skindx", charset="UTF-8"'}
            await refuse(send, 401, "Log in first, at /login or by HTTP Basic.", asks)

    async def _login(self, scope: Message, receive: Receive, send: Send, known: Known) -> None:
        if scope["method"] != "POST":
            await _page(scope, send, 200, user=self._sessions.user(_cookie(scope), known))
            return
        body = await read_body(receive, _FORM_BYTES)
        form = parse_qs((body or b"").decode("utf-8", "replace"), max_num_fields=8)
        name, password = (form.get(key, [""])[0] for key in ("name", "password"))
        user, wait_s = await self._right(scope, name, password, known)
        if user:
            token = self._sessions.begin(user, known[user])
            headers = {
                "location": f"{root_of(scope)}/",
                "set-cookie": _set_cookie(scope, token, LIFE_S),
            }
            await respond(send, 303, b"", headers=headers)
        elif wait_s:
            await _page(scope, send, 429, problem=_slow_down(wait_s), headers=_retry(wait_s))
        else:
            await _page(scope, send, 401, problem=_WRONG)

    async def _logout(self, scope: Message, send: Send, known: Known) -> None:
        if scope["method"] != "POST":  # a link alone must not log a user out
            await _page(scope, send, 200, user=self._sessions.user(_cookie(scope), known))
            return
        self._sessions.end(_cookie(scope))
        headers = {"location": f"{root_of(scope)}/login", "set-cookie": _set_cookie(scope, "", 0)}
        await respond(send, 303, b"", headers=headers)

    async def _right(
        self, scope: Message, name: str, password: str, known: Known
    ) -> tuple[str, float]:
        """Return the name if the password is right, else ""; and how long to wait for a try."""
        assert self._users is not None
        hashed = known.get(name)
        if hashed and self._remembered.holds(name, password, hashed):
            return name, 0.0
        address = (scope.get("client") or ("",))[0]
        if wait_s := self._throttle.wait_s(name, address):
            return "", wait_s
        # Counted before it is checked: parallel tries must not count as one.
        self._throttle.failed(name, address)
        async with self._hashing:
            right = await asyncio.to_thread(self._users.matches, hashed, password)
        if not right or hashed is None:
            return "", 0.0
        self._throttle.succeeded(name, address)
        self._remembered.add(name, password, hashed)
        return name, 0.0


def _is_foreign(scope: Message) -> bool:
    """Tell whether a page of another site sent this request by its reader's browser."""
    origin = header(scope, b"origin")
    if scope["method"] in ("GET", "HEAD", "OPTIONS") or not origin:
        return False
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:  # no browser sends such a one
        return True
    return netloc not in (header(scope, b"host"), *scope.get(NAMED, ()))


def _cookie(scope: Message) -> str:
    # Read by hand: `http.cookies` drops every cookie where one of them, anybody's, is odd.
    for pair in ";".join(headers(scope, b"cookie")).split(";"):
        name, _, value = pair.partition("=")
        if name.strip() == COOKIE:
            return value.strip().strip('"')
    return ""


def _set_cookie(scope: Message, token: str, life_s: int) -> str:
    # Behind a proxy the scheme is https only where the server is configured to trust the proxy.
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    path = root_of(scope) or "/"
    return f"{COOKIE}={token}; Path={path}; Max-Age={life_s}; HttpOnly; SameSite=Strict{secure}"


def _basic(authorization: str) -> tuple[str, str]:
    try:
        name, _, password = (
            base64.b64decode(authorization[6:], validate=True).decode().partition(":")
        )
    except ValueError:
        return "", ""
    return name, password


def _slow_down(wait_s: float) -> str:
    return f"Too many wrong passwords; try again in {math.ceil(wait_s)} seconds."


def _retry(wait_s: float) -> dict[str, str]:
    return {"retry-after": str(math.ceil(wait_s))}


async def _no_users(scope: Message, send: Send) -> None:
    if "text/html" in header(scope, b"accept"):
        await _page(scope, send, 503, problem=_NO_USERS)
    else:
        await refuse(send, 503, _NO_USERS)


async def _page(
    scope: Message,
    send: Send,
    status: int,
    *,
    user: str = "",
    problem: str = "",
    headers: dict[str, str] | None = None,
) -> None:
    body = render("login.html.jinja", user=user, problem=problem, root=root_of(scope)).encode()
    await respond(send, status, body, "text/html; charset=utf-8", headers)
