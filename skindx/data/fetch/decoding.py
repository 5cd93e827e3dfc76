"""Bodies that a server compresses although none was asked for: decoded, within strict limits.

RFC 9110 section 8.4 (Content-Encoding), RFC 1952 (gzip), 7932 (brotli), 8878 and 9659 (zstd).
"""

import sys
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Request, Response

UNDECODABLE = "skindx_undecodable"
"""Response flag prefix: why a body could not be decoded."""

MAX_CODINGS = 3
_FREE_BYTES = 1_000_000
"""So much may come of anything; above it the ratio counts."""
_MAX_RATIO = 200
"""HTML shrinks to a tenth or a thirtieth, images hardly: what grows more is a bomb."""
_WINDOW_LOG = 23
"""zstd: at most 8 MB of history, as RFC 9659 asks of all servers."""


class DecodingError(Exception):
    """A body is not what its Content-Encoding says, or grows beyond the limits."""


def decoded(body: bytes, content_encoding: str, max_bytes: int) -> bytes:
    """Undo the codings of a Content-Encoding header, the last one first. Raises DecodingError.

    No more than `max_bytes` is ever made of any step, nor more than 200 times what came.
    """
    codings = [coding.strip().lower() for coding in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if len(codings) > MAX_CODINGS:
        raise DecodingError(f"it is compressed {len(codings)} times")
    limit = min(max_bytes, max(_FREE_BYTES, _MAX_RATIO * len(body)))
    for coding in reversed(codings):
        if coding not in _DECODERS:
            raise DecodingError(f"{coding[:40]} is not known here")
        body = _DECODERS[coding](body, limit)
        if len(body) > limit:
            raise DecodingError(f"it grows to more than {limit} bytes")
    return body


def _gzip(body: bytes, limit: int) -> bytes:
    return _inflated(body, limit, zlib.MAX_WBITS | 16)


def _deflate(body: bytes, limit: int) -> bytes:
    try:
        return _inflated(body, limit, zlib.MAX_WBITS)
    except DecodingError:
        return _inflated(body, limit, -zlib.MAX_WBITS)  # many servers leave the zlib frame out


def _inflated(body: bytes, limit: int, wbits: int) -> bytes:
    parts, size = [], 0
    while body and size <= limit:  # a gzip file may have several members
        machine = zlib.decompressobj(wbits)
        try:
            part = machine.decompress(body, limit + 1 - size)
        except zlib.error as error:
            raise DecodingError(str(error)) from None
        parts.append(part)
        size += len(part)
        if not machine.eof and size <= limit:
            raise DecodingError("its compressed data end too early")
        body = machine.unused_data
    return b"".join(parts)


def _brotli(body: bytes, limit: int) -> bytes:
    machine = brotli.Decompressor()
    try:
        # The limit is a wish: the result may be longer by what one step makes.
        made = [machine.process(body, output_buffer_limit=limit + 1)]
        size = len(made[0])
        while size <= limit and not machine.is_finished():
            made.append(machine.process(b"", output_buffer_limit=limit + 1 - size))
            if not made[-1]:
                raise DecodingError("its compressed data end too early")
            size += len(made[-1])
    except brotli.error as error:
        raise DecodingError(str(error)) from None
    return b"".join(made)


def _zstd(body: bytes, limit: int) -> bytes:
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
    parts, size = [], 0
    while body and size <= limit:
        machine = zstd.ZstdDecompressor(options=options)
        try:
            part = machine.decompress(body, max_length=limit + 1 - size)
        except (zstd.ZstdError, MemoryError) as error:
            raise DecodingError(str(error)) from None
        parts.append(part)
        size += len(part)
        if not machine.eof and size <= limit:
            raise DecodingError("its compressed data end too early")
        body = machine.unused_data if machine.eof else b""
    return b"".join(parts)


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}


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
            return response.replace(flags=[*response.flags, f"{UNDECODABLE}: {error}"])
        headers = response.headers.copy()
        headers.pop("Content-Encoding")
        headers.pop("Content-Length", None)
        return response.replace(body=body, headers=headers)


def why_undecodable(flags: list[str]) -> str:
    """Return what a response's flags say of its body, "" if nothing went wrong."""
    reasons = (flag.partition(": ")[2] for flag in flags if flag.startswith(UNDECODABLE))
    return next(reasons, "")
