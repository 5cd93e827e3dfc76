"""Addresses as sources write them, made into URLs that the crawl accepts, or refused."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urldefrag, urljoin, urlsplit

if TYPE_CHECKING:
    from scrapy.http import HtmlResponse


def plain_url(address: str) -> str | None:
    """Return an absolute http(s) URL, escaped and without fragment; None if it is none.

    A URL with a user name in it is none: it exists to look like another host.
    """
    from w3lib.url import safe_url_string

    try:
        url: str = safe_url_string(urldefrag(address).url)
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return url if usable and "@" not in parts.netloc else None


def web_url(page: "HtmlResponse", address: str) -> str | None:
    """Return an address of a page as `plain_url` does, relative ones made absolute."""
    try:
        return plain_url(page.urljoin(address))
    except ValueError:
        return None


_ARCHIVED = re.compile(r"/web/\d{1,14}[a-z_]*/(?=[^/]+\.)")
_PHOTON = re.compile(r"i\d\.wp\.com")
_NAMES = frozenset({"url", "u", "src", "source", "image", "img", "uri", "href", "file", "path"})
_IMAGE = re.compile(r"\.(jpe?g|jpe|jfif|png|webp|bmp|tiff?|gif|avif|heic)$", re.IGNORECASE)
_MOST_CARRIED = 4
_MOST_PAIRS = 100


def carried(url: str) -> list[str]:
    """Return the addresses that a URL carries: what an archive, proxy or resizer would send.

    As in https://archive.example/web/2020/https://atlas.example/1.jpg and in
    /thumb.php?src=/full/1.jpg: it gives the image of that address, whoever sends it.
    """
    found: dict[str, None] = {}
    waiting = [url]
    while waiting and len(found) < _MOST_CARRIED:
        new = [address for address in _carried(waiting.pop()) if address not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return list(found)[:_MOST_CARRIED]


def _carried(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, max_num_fields=_MOST_PAIRS)
    except ValueError:
        return
    path, query = unquote(parts.path), f"?{parts.query}" if parts.query else ""
    # Archives write one slash or two.
    if inner := re.search(r"(?<=.)(https?):/+(?=[^/])", path, re.IGNORECASE):
        yield f"{inner[1]}://{path[inner.end() :]}{query}"
    elif inner := _ARCHIVED.match(path):
        yield f"http://{path[inner.end() :]}{query}"
    elif _PHOTON.fullmatch(parts.hostname or ""):
        yield f"https://{path[1:]}"
    for name, value in pairs:
        whole = re.match(r"(https?:)?//", value, re.IGNORECASE)
        is_image = _IMAGE.search(value.partition("?")[0])
        if is_image or (whole and name.lower() in _NAMES):
            with suppress(ValueError):
                yield urljoin(url, value)


def shown(address: str) -> str:
    """Shorten what may be a whole image in a data: URL, so that two still differ."""
    if len(address) <= 200:
        return address
    digest = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()
    return f"{address[:100]}…{digest[:16]}"
