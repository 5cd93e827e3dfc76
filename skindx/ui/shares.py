"""How much of the server one client may take, so that others are still answered."""

import ipaddress
import sys
from collections import Counter

from skindx.ui.asgi import USER, App, Message, Receive, Send, refuse

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


class Shares:
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


class RequestShares:
    """ASGI middleware: one client has at most `per_client` requests at a time; one more gets 429.

    Where a proxy forwards the requests of many clients, its connections do not
    distinguish the clients.
    """

    def __init__(self, app: App, per_client: int) -> None:
        self.app = app
        self._shares = Shares(per_client)

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
