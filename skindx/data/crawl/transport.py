"""What a connection may do: public addresses only, short heads, few at once, bounded decoding.

Only public addresses are connected to, however a URL, a redirect or a name server spells them. The
check stands where the connection is made, on the very address that is connected to: a look-up made
earlier may be answered differently the second time. A body that a server compresses although none
was asked for is decoded within strict limits: RFC 9110 section 8.4 (Content-Encoding), RFC 1952
(gzip), 7932 (brotli), 8878 and 9659 (zstd).
"""

import ipaddress
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import brotli
from scrapy.core.downloader import Downloader
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IHostnameResolver, IResolutionReceiver
from twisted.python.failure import Failure
from twisted.web._newclient import HEADER, STATUS, HTTP11ClientProtocol
from twisted.web.client import _HTTP11ClientFactory
from zope.interface import implementer

from skindx.data.crawl.fetch_settings import FetchSettings, host_port

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Request, Response

CRAWL_DELAY = "skindx_crawl_delay_s"
"""Request meta: the seconds that the origin's robots.txt asks for between two requests, capped."""

MAX_HEAD_BYTES = 262_144
"""Most bytes of an answer's status line and headers: Twisted itself sets no limit."""

MAX_CODINGS = 3
_UNDECODABLE = "skindx_undecodable"
"""Response flag prefix: why a body could not be decoded."""
_FREE_BYTES = 1_000_000
"""Bytes that any answer may unpack to; above them the ratio counts."""
_MAX_RATIO = 200
"""HTML shrinks to a tenth or a thirtieth, images hardly: what grows more is a bomb."""
_WINDOW_LOG = 23
"""zstd: at most 8 MB of history, as RFC 9659 asks of all servers."""

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_REFUSED = "255.255.255.255"
"""Stands in for an address that a name may not have; the connection guard always refuses it."""


class PrivateAddressError(Exception):
    """A connection was about to go to an address that is not public."""


class HeadTooLongError(Exception):
    """A server sent more headers, or answers before the answer (100 Continue), than any needs."""


class DecodingError(Exception):
    """A body is not what its Content-Encoding says, or grows beyond the limits."""


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
        guarded = _GuardedReceiver(receiver, self._granted if allowed else None)
        return self._resolver.resolveHostName(guarded, hostName, portNumber, *rest, **options)


@implementer(IResolutionReceiver)  # type: ignore[misc, untyped-decorator, unused-ignore]
class _GuardedReceiver:
    """Passes resolved addresses on; `granted` is None for a name that may have none private."""

    def __init__(self, receiver: Any, granted: set[tuple[str, int]] | None) -> None:
        self._receiver = receiver
        self._granted = granted

    def resolutionBegan(self, resolution: Any) -> None:  # noqa: N802
        self._receiver.resolutionBegan(resolution)

    def resolutionComplete(self) -> None:  # noqa: N802
        self._receiver.resolutionComplete()

    def addressResolved(self, address: Any) -> None:  # noqa: N802 (the interface's name)
        if isinstance(address, IPv4Address | IPv6Address) and not is_public(address.host):
            if self._granted is None:
                # Left out, it would look like a name that does not exist.
                address = IPv4Address("TCP", _REFUSED, address.port)
            else:
                self._granted.add((address.host, address.port))
        self._receiver.addressResolved(address)


class LimitedProtocol(HTTP11ClientProtocol):  # type: ignore[misc, unused-ignore]
    """One connection; it is given up when a head goes on and on."""

    _head_bytes = 0

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 (Twisted's name)
        """Parse what came, and count it while no body has begun."""
        super().dataReceived(data)
        if self._parser is None or self._parser.state not in (STATUS, HEADER):
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._giveUp(Failure(HeadTooLongError(f"more than {MAX_HEAD_BYTES} bytes of head")))


class LimitedFactory(_HTTP11ClientFactory):  # type: ignore[misc, unused-ignore]
    """Makes such connections for Scrapy's pool."""

    def buildProtocol(self, addr: Any) -> LimitedProtocol:  # noqa: N802 (Twisted's name)
        return LimitedProtocol(self._quiescentCallback)


def head_too_long(problem: BaseException) -> bool:
    """Tell whether this is why no answer came; Twisted and Scrapy wrap the reason."""
    return any(isinstance(reason, HeadTooLongError) for reason in _reasons(problem))


def _reasons(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        for failure in getattr(problem, "reasons", None) or ():
            yield from _reasons(failure.value)
        problem = problem.__cause__


class KeepAliveHandler(HTTP11DownloadHandler):  # type: ignore[misc]
    """Keeps one idle connection for each request that may run at once, and heads short.

    Scrapy sizes its pool by the default of all hosts, one here: a faster origin would get a new
    connection for nearly every image, and a small server's queue of them overflows.
    """

    def __init__(self, crawler: "Crawler") -> None:
        super().__init__(crawler)
        fetch: FetchSettings = crawler.settings["SKINDX_FETCH"]
        most = max((policy.concurrency for policy in fetch.origins.values()), default=0)
        self._pool.maxPersistentPerHost = max(most, fetch.concurrency)
        self._pool._factory = LimitedFactory


class ExactDownloader(Downloader):  # type: ignore[misc]
    """Never has more requests of an origin at once than its slot allows.

    Scrapy 2.19 counts a request when its task starts, not when it leaves the queue: of requests
    that become ready together (when robots.txt has answered, say) all go out at the same time.
    """

    def _get_slot(self, request: Any) -> Any:
        key, slot = super()._get_slot(request)
        # Set at each request: a slot that was idle for a minute is thrown away and made again.
        delay_s = request.meta.get(CRAWL_DELAY, 0.0)
        if delay_s > slot.delay:
            slot.delay, slot.concurrency = delay_s, 1
        return key, slot

    def _wait_for_download(self, slot: Any, request: Any, answer: Any) -> Any:
        slot.transferring.add(request)  # a set: Scrapy adds it again, and removes it at the end
        return super()._wait_for_download(slot, request, answer)


class Decoder:
    """Downloader middleware that hands plain bodies on: pages, images, robots.txt."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    @classmethod
    def from_crawler(cls, crawler: "Crawler") -> "Decoder":
        """Build the middleware; called by Scrapy."""
        return cls(crawler.settings["SKINDX_FETCH"].max_bytes)

    def process_response(self, request: "Request", response: "Response") -> "Response":
        """Decode a body; one that cannot be decoded stays as it came, with the reason in a flag."""
        coding = b",".join(response.headers.getlist("Content-Encoding")).decode("latin-1")
        if not response.body or coding.strip().lower() in ("", "identity"):
            return response
        try:
            limit = request.meta.get("download_maxsize", self._max_bytes)
            body = decoded(response.body, coding, limit)
        except DecodingError as error:
            return response.replace(flags=[*response.flags, f"{_UNDECODABLE}: {error}"])
        headers = response.headers.copy()
        headers.pop("Content-Encoding")
        headers.pop("Content-Length", None)
        return response.replace(body=body, headers=headers)


def why_undecodable(flags: list[str]) -> str:
    """Return what a response's flags say of its body, "" if nothing went wrong."""
    reasons = (flag.partition(": ")[2] for flag in flags if flag.startswith(_UNDECODABLE))
    return next(reasons, "")


def decoded(body: bytes, content_encoding: str, max_bytes: int) -> bytes:
    """Undo the codings of a Content-Encoding header, the last one first. Raises DecodingError.

    No more than `max_bytes` is ever made of any step, nor more than 200 times what came.
    """
    codings = [coding.strip().lower() for coding in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if len(codings) > MAX_CODINGS:
        raise DecodingError(f"the response is compressed {len(codings)} times")
    limit = min(max_bytes, max(_FREE_BYTES, _MAX_RATIO * len(body)))
    for coding in reversed(codings):
        if coding not in _DECODERS:
            raise DecodingError(f"{coding[:40]} is not known here")
        try:
            body = _DECODERS[coding](body, limit)
        except (zlib.error, brotli.error, zstd.ZstdError, MemoryError) as error:
            raise DecodingError(str(error)) from None
        if len(body) > limit:
            raise DecodingError(f"the response unpacks to more than {limit} bytes")
    return body


def _members(body: bytes, limit: int, decompressor: Callable[[], Any]) -> bytes:
    """Decompress one member after another: gzip and zstd files may have several."""
    parts, size = [], 0
    while body and size <= limit:
        machine = decompressor()
        parts.append(machine.decompress(body, limit + 1 - size))
        size += len(parts[-1])
        if not machine.eof and size <= limit:
            raise DecodingError("the compressed data of the response end too early")
        body = machine.unused_data if machine.eof else b""
    return b"".join(parts)


def _gzip(body: bytes, limit: int) -> bytes:
    return _members(body, limit, lambda: zlib.decompressobj(zlib.MAX_WBITS | 16))


def _deflate(body: bytes, limit: int) -> bytes:
    try:
        return _members(body, limit, zlib.decompressobj)
    except (zlib.error, DecodingError):  # many servers leave the zlib frame out
        return _members(body, limit, lambda: zlib.decompressobj(-zlib.MAX_WBITS))


def _brotli(body: bytes, limit: int) -> bytes:
    machine = brotli.Decompressor()
    # The limit is a wish: the result may be longer by what one step makes.
    made = [machine.process(body, output_buffer_limit=limit + 1)]
    size = len(made[0])
    while size <= limit and not machine.is_finished():
        made.append(machine.process(b"", output_buffer_limit=limit + 1 - size))
        if not made[-1]:
            raise DecodingError("the compressed data of the response end too early")
        size += len(made[-1])
    return b"".join(made)


def _zstd(body: bytes, limit: int) -> bytes:
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
    return _members(body, limit, lambda: zstd.ZstdDecompressor(options=options))


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
