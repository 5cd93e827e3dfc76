"""Only public addresses are connected to, however a URL, a redirect or a name server spells them.

The check stands where the connection is made, on the very address that is connected to: a look-up
made earlier may be answered differently the second time.
"""

import ipaddress
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IHostnameResolver, IResolutionReceiver
from zope.interface import implementer

from skindx.data.fetch.settings import FetchSettings, host_port

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_REFUSED = "255.255.255.255"
"""Stands in for an address that a name may not have; the connection guard always refuses it."""


class PrivateAddressError(Exception):
    """A connection was about to go to an address that is not public."""


def is_public(text: str) -> bool:
    """Tell whether an IP address belongs to the public internet, also inside IPv6 wrappings."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
        if address not in _GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast


@implementer(IHostnameResolver)  # type: ignore[misc, untyped-decorator, unused-ignore]
class AddressGuard:
    """Stands before the reactor's resolver and its `connectTCP`, through which all connections go.

    The resolver knows the name in the URL: it gives no private address to a name that is not in
    `allow_private` with its port. The connection knows the address: it is refused unless public
    or just given to such a name. Scrapy builds this from the setting TWISTED_DNS_RESOLVER.
    """

    def __init__(self, reactor: Any, fetch: FetchSettings) -> None:
        self._reactor = reactor
        self._resolver = reactor.nameResolver
        self._connect = reactor.connectTCP
        self._allowed = frozenset(fetch.allow_private)
        self._granted: set[tuple[str, int]] = set()

    @classmethod
    def from_crawler(cls, crawler: "Crawler", reactor: Any) -> "AddressGuard":
        """Build the guard of this process."""
        return cls(reactor, crawler.settings["SKINDX_FETCH"])

    def install_on_reactor(self) -> None:
        """Put the guard in place; called by Scrapy before the reactor runs."""
        self._reactor.installNameResolver(self)
        self._reactor.connectTCP = self.connect_tcp

    def connect_tcp(self, host: str, port: int, *rest: Any, **options: Any) -> Any:
        """Connect to a public or granted address. Raises PrivateAddressError."""
        granted = (host, port) in self._granted and host != _REFUSED
        if not granted and not is_public(host):
            raise PrivateAddressError(f"{host_port(host, port)} is not a public address")
        return self._connect(host, port, *rest, **options)

    def resolveHostName(  # noqa: N802 (the interface's name)
        self, receiver: Any, hostName: str, portNumber: int = 0, *rest: Any, **options: Any
    ) -> Any:
        """Resolve a name or literal; private addresses reach allowed names alone."""
        allowed = host_port(hostName.lower(), portNumber) in self._allowed
        guarded = _Receiver(receiver, self._granted if allowed else None)
        return self._resolver.resolveHostName(guarded, hostName, portNumber, *rest, **options)


@implementer(IResolutionReceiver)  # type: ignore[misc, untyped-decorator, unused-ignore]
class _Receiver:
    """Passes resolved addresses on; `granted` is None for a name that may have none private."""

    def __init__(self, receiver: Any, granted: set[tuple[str, int]] | None) -> None:
        self._receiver = receiver
        self._granted = granted

    def resolutionBegan(self, resolution: Any) -> None:  # noqa: N802
        self._receiver.resolutionBegan(resolution)

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        if isinstance(address, IPv4Address | IPv6Address) and not is_public(address.host):
            if self._granted is None:
                # Left out, it would look like a name that does not exist.
                address = IPv4Address("TCP", _REFUSED, address.port)
            else:
                self._granted.add((address.host, address.port))
        self._receiver.addressResolved(address)

    def resolutionComplete(self) -> None:  # noqa: N802
        self._receiver.resolutionComplete()
