"""How much of the server one client may take: requests at a time, bytes, and time for them."""

import asyncio
import ipaddress
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from skindx.ui.http.asgi import USER, App, Message, Receive, Send, header, headers, refuse

PER_ADDRESS = 100
"""Connections of one address, or behind a proxy requests at a time; many may share an address."""


def client_of(scope: Message) -> str:
    """Return who sent a request: the login name, or the network address without one."""
    return str(scope.get(USER) or "") or network((scope.get("client") or ("",))[0])


def network(address: str) -> str:
    """Return the address whose share counts: of IPv6 the first 64 bits, which one client holds."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])  # without a zone
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)


class ConnectionQuota:
    """An amount that clients hold now, bounded for each and for all together."""

    def __init__(self, per_client: int, total: int = sys.maxsize) -> None:
        self.per_client, self.total = per_client, total
        self.held = 0
        self._of: Counter[str] = Counter()

    def exceeded(self, client: str, more: int = 0) -> str:
        """Return what would be exceeded with `more`: "total", "client" or "" for nothing."""
        if self.held + more > self.total:
            return "total"
        return "client" if self._of[client] + more > self.per_client else ""

    def add(self, client: str, amount: int) -> None:
        """Note that a client holds more, or with a negative amount less."""
        self._of[client] += amount
        self.held += amount
        if self._of[client] <= 0:
            del self._of[client]


class RequestQuota:
    """ASGI middleware: one client has at most `per_client` requests at a time; one more gets 429.

    Where a proxy forwards the requests of many clients, its connections do not
    distinguish the clients.
    """

    def __init__(self, app: App, per_client: int) -> None:
        self.app = app
        self._shares = ConnectionQuota(per_client)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on while its client has a share left."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client = client_of(scope)
        if self._shares.exceeded(client, 1):
            sentence = (
                f"Your address has {self._shares.per_client} requests open, which is the most; "
                "close some pages."
            )
            await refuse(send, 429, sentence, retry_s=5)
            return
        self._shares.add(client, 1)
        try:
            await self.app(scope, receive, send)
        finally:
            self._shares.add(client, -1)


@dataclass(frozen=True)
class Pace:
    """How slowly a body may arrive; only the time in which the server waits for it counts."""

    silence_s: float = 30.0
    """Longest time without a byte."""
    grace_s: float = 20.0
    """Seconds that pass before the rate counts."""
    bytes_per_s: float = 8_192.0
    """Least mean rate after that; the slowest mobile networks send at about this rate."""
    total_s: float = 900.0
    """Longest time for a whole body, whatever its rate."""

    def patience_s(self, came: int, waited_s: float) -> float:
        """Return how long to wait for the next bytes, after `came` bytes in `waited_s` seconds."""
        allowed_s = min(self.grace_s + came / self.bytes_per_s, self.total_s)
        return min(self.silence_s, allowed_s - waited_s)


ENCODED = "The request's body is compressed (Content-Encoding), and none is undone; send it plain."
PLAIN = {"accept-encoding": "identity"}
"""What an answer of 415 says beside it."""
_TWO_LENGTHS = "The request has both Content-Length and Transfer-Encoding; send one of them."


def is_encoded(scope: Message) -> bool:
    """Tell whether a request's body is compressed, or changed otherwise on its way."""
    codings = ",".join(headers(scope, b"content-encoding")).replace(" ", "").lower()
    return bool(set(codings.split(",")) - {"", "identity"})


class BodyLimit:
    """ASGI middleware that counts a body while it arrives, before anybody keeps it.

    `most` gives the limit of a path in bytes; `held` bounds what all requests together, and those
    of one client, have sent and not yet been answered, since that is held in memory.
    """

    def __init__(
        self, app: App, most: Callable[[str], int], held: ConnectionQuota, pace: Pace | None = None
    ) -> None:
        self.app, self._most, self._held, self._pace = app, most, held, pace or Pace()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on until it sends too much or too slowly: 413, 429, 503 or 408."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self._most(scope["path"])
        if is_encoded(scope):
            await refuse(send, 415, ENCODED, PLAIN | {"connection": "close"})
            return
        if header(scope, b"content-length") and header(scope, b"transfer-encoding"):
            # A proxy may have read the other of the two, and take the rest for another request.
            await refuse(send, 400, _TWO_LENGTHS, {"connection": "close"})
            return
        declared = header(scope, b"content-length")
        length = int(declared) if declared.isdigit() else 0
        if length > most:
            await _too_much(send, most)
        elif exceeded := self._held.exceeded(client_of(scope), length):
            await _busy(send, exceeded)
        else:
            await _Body(self, client_of(scope), most, receive, send).answer(scope)


class _Body:
    """One request on its way."""

    def __init__(
        self, limit: BodyLimit, client: str, most: int, receive: Receive, send: Send
    ) -> None:
        self._limit, self._client, self._most = limit, client, most
        self._receive, self._send = receive, send
        self._came, self._waited_s = 0, 0.0
        self._whole = self._begun = False
        self._refuse: Callable[[], object] | None = None

    async def answer(self, scope: Message) -> None:
        """Have the request answered, or refuse it where nothing has been answered yet."""
        held = self._limit._held
        try:
            await self._limit.app(scope, self._count, self._pass)
        except Exception:
            if self._refuse is None or self._begun:
                raise
        finally:
            held.add(self._client, -self._came)
        if self._refuse is not None and not self._begun:
            await self._refuse()  # type: ignore[misc]

    async def _count(self) -> Message:
        if self._refuse is not None:
            return {"type": "http.disconnect"}
        if self._whole:
            return await self._receive()
        start = time.monotonic()
        try:
            patience_s = self._limit._pace.patience_s(self._came, self._waited_s)
            message = await asyncio.wait_for(self._receive(), patience_s)
        except TimeoutError:
            self._refuse = lambda: _too_slow(self._send)
            return {"type": "http.disconnect"}
        self._waited_s += time.monotonic() - start
        size = len(message.get("body", b""))
        self._came += size
        self._limit._held.add(self._client, size)
        self._whole = not message.get("more_body", False)
        if self._came > self._most:
            self._refuse = lambda: _too_much(self._send, self._most)
        elif exceeded := self._limit._held.exceeded(self._client):
            self._refuse = lambda: _busy(self._send, exceeded)
        return {"type": "http.disconnect"} if self._refuse else message

    async def _pass(self, message: Message) -> None:
        if self._refuse is None or self._begun:
            self._begun = True
            await self._send(message)


async def _too_much(send: Send, most: int) -> None:
    sentence = f"The request has more than {most >> 20} MB; send fewer or smaller photos."
    await refuse(send, 413, sentence, {"connection": "close"})


async def _busy(send: Send, exceeded: str) -> None:
    if exceeded == "client":
        status, sentence = 429, "You send too many photos at once; wait for the answers first."
    else:
        status, sentence = 503, "Too many photos arrive at once."
    await refuse(send, status, sentence, retry_s=5)


async def _too_slow(send: Send) -> None:
    sentence = "The photo arrived too slowly or not at all; try again, or send a smaller one."
    await refuse(send, 408, sentence, {"connection": "close"})
