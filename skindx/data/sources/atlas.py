"""An atlas site: a start page links to category pages, a category page shows pictures."""

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal
from urllib.parse import urldefrag, urlsplit

from pydantic import Field

from skindx.config import Settings
from skindx.data.ledger import LedgerRow
from skindx.errors import UserError

if TYPE_CHECKING:
    from parsel import Selector
    from scrapy.http import HtmlResponse


class AtlasSource(Settings):
    """A site whose pictures are found by CSS selectors.

    `category` and `next_page` are looked up in a page, `figure` in a category page; `picture`,
    `licence` and `creator` inside one figure. A category's label is its link's attribute
    `data-label` if it has one, else the link's text.
    """

    kind: Literal["atlas"]
    start: str = Field(pattern=r"^https?://[^/\s]+")
    category: str = Field("a.category", min_length=1)
    next_page: str = Field("a.next", min_length=1)
    figure: str = Field("figure.picture", min_length=1)
    picture: str = Field("a.full", min_length=1)
    licence: str = Field(".licence", min_length=1)
    creator: str = Field(".creator", min_length=1)
    default_licence: str = ""
    """Licence of a picture whose figure names none."""
    attribution: str = ""
    """How the site wants its pictures to be credited."""

    def check_selectors(self) -> None:
        """Raise UserError for a selector that is no CSS; needs the `data` extra."""
        from cssselect import SelectorError
        from parsel.csstranslator import HTMLTranslator

        for name in ("category", "next_page", "figure", "picture", "licence", "creator"):
            selector = getattr(self, name)
            try:
                HTMLTranslator().css_to_xpath(selector)
            except SelectorError as error:
                raise UserError(
                    f"{self.start}: {name} = {selector!r} is no CSS selector ({error}); "
                    "write it as in `figure.picture a`."
                ) from None


def categories(source: AtlasSource, page: "HtmlResponse") -> Iterator[tuple[str, str]]:
    """Yield (address as written, label) of each category link of an index page."""
    for link in page.css(source.category):
        label = link.attrib.get("data-label", "").strip() or _text(link)
        if label and _address(link):
            yield _address(link), label


def next_pages(source: AtlasSource, page: "HtmlResponse") -> Iterator[str]:
    """Yield the addresses, as written, of the pages that continue this one."""
    for link in page.css(source.next_page):
        if _address(link):
            yield _address(link)


def pictures(source: AtlasSource, page: "HtmlResponse", label: str) -> Iterator[LedgerRow]:
    """Yield a row a picture link of a category page: status "" if it can be fetched, or bad-url."""
    for figure in page.css(source.figure):
        licence = _text(*figure.css(source.licence)[:1]) or source.default_licence
        creator = _text(*figure.css(source.creator)[:1])
        for link in figure.css(source.picture):
            url = web_url(page, _address(link))
            yield LedgerRow(
                url=url or _shown(_address(link)),
                label=label,
                status="" if url else "bad-url",
                detail="" if url else "Only http and https addresses are fetched.",
                source=source.start,
                page_url=page.url,
                licence=licence,
                creator=creator,
                attribution=source.attribution,
            )


def web_url(page: "HtmlResponse", address: str) -> str | None:
    """Return an address of a page as an absolute http(s) URL without fragment, None if it is none.

    A URL with a user name in it is none: it exists to look like another host.
    """
    from w3lib.url import safe_url_string

    try:
        url: str = safe_url_string(urldefrag(page.urljoin(address)).url)
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return url if usable and "@" not in parts.netloc else None


def _address(element: "Selector") -> str:
    return (element.attrib.get("href") or element.attrib.get("src") or "").strip()


def _text(*elements: "Selector") -> str:
    return " ".join(" ".join(element.css("::text").getall()) for element in elements).strip()


def _shown(address: str) -> str:
    """Shorten what may be a whole picture in a data: URL, so that two still differ."""
    if len(address) <= 200:
        return address
    digest = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()
    return f"{address[:100]}…{digest[:16]}"
