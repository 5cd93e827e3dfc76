"""The gate before page and interface: in by session or HTTP Basic, everything else is refused.

Wrong passwords cost waiting time, above all to the address that sends them. Failures are counted
for each pair of name and address, so guesses from elsewhere lock out no user. All addresses
together have an allowance for a name, and all names for an address, which bounds a search from many
addresses or over many names; a pair that logged in lately needs neither.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from skindx.core.errors import UserError
from skindx.texts.catalogue import text
from skindx.ui.http.asgi import (
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
from skindx.ui.http.request_limits import network
from skindx.ui.http.users import Users
from skindx.ui.page_basics import render

LIFE_S = 12 * 3600
_MOST = 10_000
_BASIC_LIFE_S = 300.0


class Sessions:
    """Sessions in memory: a restart of the server ends them all.

    Each is bound to the password's hash under which it began, so that it ends when the password is
    changed, and when the user is removed, even if a user of that name is added again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[str, str, float]] = OrderedDict()

    def begin(self, user: str, hashed: str) -> str:
        """Return the token of a new session; `hashed` is the user's line in the file of users."""
        token = secrets.token_urlsafe(32)
        self._open[_digest(token)] = (user, hashed, self._clock() + LIFE_S)
        _shorten(self._open)
        return token

    def user(self, token: str, known: Mapping[str, str]) -> str:
        """Return whose session it is, "" for one that is over; `known` are names and hashes now."""
        user, hashed, until = self._open.get(_digest(token), ("", "", 0.0))
        if user and (until < self._clock() or known.get(user) != hashed):
            self.end(token)
            return ""
        return user

    def end(self, token: str) -> None:
        self._open.pop(_digest(token), None)


class RememberedPasswords:
    """Passwords that were right a moment ago, so that not every request costs a slow hash.

    Kept under a key that is made again at each start and never leaves the process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._key = clock, secrets.token_bytes(32)
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def holds(self, name: str, password: str, hashed: str) -> bool:
        """Tell whether this password was right for this hash lately."""
        return self._until.get(self._digest(name, password, hashed), 0.0) > self._clock()

    def add(self, name: str, password: str, hashed: str) -> None:
        """Remember a password that was right."""
        self._until[self._digest(name, password, hashed)] = self._clock() + _BASIC_LIFE_S
        _shorten(self._until)

    def _digest(self, *parts: str) -> bytes:
        return hmac.digest(self._key, "\0".join(parts).encode(), "sha256")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


FREE = 5
"""Tries of a pair before the first wait: everybody mistypes."""
OF_A_NAME, NAME_EVERY_S = 50, 60.0
"""Tries of a name from all addresses: so many at once, then one more each minute."""
OF_AN_ADDRESS, ADDRESS_EVERY_S = 30, 10.0
"""Tries of an address over all names."""
_FIRST_S, _LONGEST_S = 2.0, 900.0
_FORGOTTEN_S = 3600.0
_TRUSTED_S = 30 * 86400.0
_LONGEST_NAME = 65


class Throttle:
    """Limits attempts at passwords; all in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._trusted: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._names = Allowance(OF_A_NAME, NAME_EVERY_S, clock)
        self._addresses = Allowance(OF_AN_ADDRESS, ADDRESS_EVERY_S, clock)

    def wait_s(self, name: str, address: str) -> float:
        """Return in how many seconds this pair may try; 0: now."""
        pair = _pair(name, address)
        wait_s = self._pause_s(pair)
        if self._is_trusted(pair):
            return wait_s
        return max(wait_s, self._names.wait_s(pair[0]), self._addresses.wait_s(pair[1]))

    def failed(self, name: str, address: str) -> None:
        """Count a failure."""
        now, pair = self._clock(), _pair(name, address)
        count, last = self._failures.pop(pair, (0, now))
        self._failures[pair] = (1 if now - last > _FORGOTTEN_S else count + 1, now)
        _shorten(self._failures)
        if not self._is_trusted(pair):
            self._names.use(pair[0])
            self._addresses.use(pair[1])

    def succeeded(self, name: str, address: str) -> None:
        """Take back one failure, which was counted before the check, and trust the pair."""
        pair = _pair(name, address)
        self._failures.pop(pair, None)
        if not self._is_trusted(pair):
            self._names.give_back(pair[0])
            self._addresses.give_back(pair[1])
        self._trusted.pop(pair, None)
        self._trusted[pair] = self._clock() + _TRUSTED_S
        _shorten(self._trusted)

    def _is_trusted(self, pair: tuple[str, str]) -> bool:
        return self._trusted.get(pair, float("-inf")) > self._clock()

    def _pause_s(self, pair: tuple[str, str]) -> float:
        now = self._clock()
        count, last = self._failures.get(pair, (0, now))
        if count < FREE:
            return 0.0
        pause_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(count - FREE, 20))
        return max(0.0, last + pause_s - now)


class Allowance:
    """A token bucket a key: `most` tries at once, one more each `every_s` seconds."""

    def __init__(self, most: int, every_s: float, clock: Callable[[], float]) -> None:
        self._most, self._every_s, self._clock = most, every_s, clock
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """Return in how many seconds the key has a try left; 0: now."""
        return max(0.0, self._used_of(key) + 1 - self._most) * self._every_s

    def use(self, key: str) -> None:
        self._put(key, self._used_of(key) + 1)

    def give_back(self, key: str) -> None:
        self._put(key, self._used_of(key) - 1)

    def _used_of(self, key: str) -> float:
        used, at = self._used.get(key, (0.0, 0.0))
        return max(0.0, used - (self._clock() - at) / self._every_s)

    def _put(self, key: str, used: float) -> None:
        self._used.pop(key, None)
        self._used[key] = (max(0.0, used), self._clock())
        _shorten(self._used)


def _pair(name: str, address: str) -> tuple[str, str]:
    # Longer names do not exist: invented ones must not fill the memory.
    return name[:_LONGEST_NAME], network(address)


def _shorten(table: OrderedDict[Any, Any]) -> None:
    while len(table) > _MOST:
        table.popitem(last=False)


log = logging.getLogger(__name__)

Known = Mapping[str, str]
"""Name -> hash, as the file of users says now."""
COOKIE = "skindx_session"
_FORM_BYTES = 4096
_LOGGED_OUT = (
    "You are not logged in, or your session has ended; log in at /login, or by HTTP Basic."
)
_FOREIGN = "This request comes from another site's page, so it is not answered."


class Gate:
    """ASGI middleware; with `users` None every request passes, without a name."""

    def __init__(
        self, app: App, users: Users | None, free: Callable[[str], bool] = lambda path: False
    ) -> None:
        self.app, self._users, self._free = app, users, free
        self._sessions, self._remembered = Sessions(), RememberedPasswords()
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
            # To a script of the page, a browser would answer Basic with a window of its own.
            scheme = "Session" if _is_of_page(scope) else "Basic"
            asks = {"www-authenticate": f'{scheme} realm="skindx", charset="UTF-8"'}
            await refuse(send, 401, _LOGGED_OUT, asks)

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
            await _page(scope, send, 401, problem=text("login_wrong"))

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


def _is_of_page(scope: Message) -> bool:
    """Tell whether a script of a page sent this request, or a form of one."""
    return bool(header(scope, b"sec-fetch-mode") or header(scope, b"referer"))


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
    return text("login_slow", seconds=math.ceil(wait_s))


def _retry(wait_s: float) -> dict[str, str]:
    return {"retry-after": str(math.ceil(wait_s))}


async def _no_users(scope: Message, send: Send) -> None:
    if "text/html" in header(scope, b"accept"):
        await _page(scope, send, 503, problem=text("login_none"))
    else:
        await refuse(send, 503, text("login_none"))


async def _page(
    scope: Message,
    send: Send,
    status: int,
    *,
    user: str = "",
    problem: str = "",
    headers: dict[str, str] | None = None,
) -> None:
    left = scope.get("query_string", b"").decode("latin-1")  # as the page's script leaves
    said = {"user": user, "problem": problem, "left": left, "root": root_of(scope)}
    body = render("login.html.jinja", **said).encode()
    await respond(send, status, body, "text/html; charset=utf-8", headers)
