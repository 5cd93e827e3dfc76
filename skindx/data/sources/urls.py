"""Addresses as sources write them, made into URLs that the crawl accepts, or refused."""

import hashlib
from typing import TYPE_CHECKING
from urllib.parse import urldefrag, urlsplit

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


def shown(address: str) -> str:
    """Shorten what may be a whole image in a data: URL, so that two still differ."""
    if len(address) <= 200:
        return address
    digest = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()
    return f"{address[:100]}…{digest[:16]}"
