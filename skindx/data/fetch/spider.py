"""Reads index and category pages and fetches the pictures that they show."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.http import HtmlResponse, Request, Response

from skindx.data.fetch.book import Book
from skindx.data.fetch.outcome import Outcome, of_answer, of_error, of_picture, opt_out
from skindx.data.fetch.settings import FetchSettings
from skindx.data.sources.atlas import AtlasSource, categories, next_pages, pictures, web_url

_PAGE_BYTES = 4_000_000
_PAGE_PRIORITY = 10  # pages before pictures, so that progress knows early how many there are


@dataclass(slots=True)
class Tour:
    """What has been found of one source so far."""

    source: AtlasSource
    pages: set[str] = field(default_factory=set)
    categories: int = 0
    pictures: int = 0
    failures: list[str] = field(default_factory=list)


Reader = Callable[[Tour, HtmlResponse, str], Iterator[Request]]


class PictureSpider(Spider):  # type: ignore[misc]
    """One crawl over all atlas sources."""

    name = "skindx"

    def __init__(
        self, sources: Sequence[AtlasSource], fetch: FetchSettings, dataset: Path, book: Book
    ) -> None:
        super().__init__()
        self._tours = [Tour(source) for source in sources]
        self._fetch = fetch
        self._dataset = dataset
        self._book = book

    async def start(self) -> AsyncIterator[Request]:
        """Ask for the start page of each source."""
        for tour in self._tours:
            for request in self._page(tour, tour.source.start, "", self._index):
                yield request

    def finish(self) -> None:
        """Close the books once the crawl has ended by itself."""
        for tour in self._tours:
            sentence = fruitless(tour)
            if sentence:
                self._book.source_failed(sentence)
        self._book.close()

    def _page(self, tour: Tour, url: str, label: str, read: Reader) -> Iterator[Request]:
        if url in tour.pages:
            return
        if len(tour.pages) >= self._fetch.max_pages:
            limit = f"The source has more than max_pages = {self._fetch.max_pages} pages."
            self._page_failed(tour, url, label, Outcome("too-many-pages", limit))
            return
        tour.pages.add(url)

        def answered(response: Response) -> Iterator[Request]:
            problem = of_answer(response)
            if problem:
                self._page_failed(tour, url, label, problem)
                return
            # Whatever Content-Type says; a page without links is told as such.
            html = HtmlResponse(response.url, headers=response.headers, body=response.body)
            yield from read(tour, html, label)
            self._book.report()

        def failed(failure: Any) -> None:
            problem = of_error(failure.value, self._fetch.timeout_s, _PAGE_BYTES)
            self._page_failed(tour, url, label, problem)

        yield Request(
            url,
            answered,
            errback=failed,
            priority=_PAGE_PRIORITY,
            dont_filter=True,
            meta={"download_maxsize": _PAGE_BYTES},
        )

    def _page_failed(self, tour: Tour, url: str, label: str, problem: Outcome) -> None:
        tour.failures.append(f"{url}: {problem.detail}")
        self._book.page_failed(url, label, tour.source.start, problem)

    def _index(self, tour: Tour, page: HtmlResponse, _: str) -> Iterator[Request]:
        for address, label in categories(tour.source, page):
            tour.categories += 1
            yield from self._link(tour, page, address, label, self._category)
        for address in next_pages(tour.source, page):
            yield from self._link(tour, page, address, "", self._index)

    def _category(self, tour: Tour, page: HtmlResponse, label: str) -> Iterator[Request]:
        forbidden = _page_opt_out(page)
        refusal = f"The page that shows it forbids this use ({forbidden})."
        for found in pictures(tour.source, page, label):
            tour.pictures += 1
            refused = forbidden and not found.status
            row = replace(found, status="opt-out", detail=refusal) if refused else found
            if self._book.wants(row):
                yield self._picture(row.url)
        for address in next_pages(tour.source, page):
            yield from self._link(tour, page, address, label, self._category)

    def _link(
        self, tour: Tour, page: HtmlResponse, address: str, label: str, read: Reader
    ) -> Iterator[Request]:
        url = web_url(page, address)
        if url:
            yield from self._page(tour, url, label, read)
        else:
            problem = Outcome("bad-url", "Only http and https addresses are fetched.")
            self._page_failed(tour, address[:200], label, problem)

    def _picture(self, url: str) -> Request:
        def answered(response: Response) -> None:
            self._book.settle(url, of_picture(response, self._dataset))

        def failed(failure: Any) -> None:
            outcome = of_error(failure.value, self._fetch.timeout_s, self._fetch.max_bytes)
            self._book.settle(url, outcome)

        return Request(url, answered, errback=failed, dont_filter=True)


def fruitless(tour: Tour) -> str:
    """Return one sentence if a source gave no picture link at all, else ""."""
    source = tour.source
    first = f" First problem: {tour.failures[0]}" if tour.failures else ""
    if tour.categories == 0:
        if tour.failures:
            return f"The start page {tour.failures[0]} Check `start` and try again later."
        return (
            f"{source.start} has no link that matches category = {source.category!r}; "
            "look into the page's HTML and set `category`."
        )
    if tour.pictures == 0:
        return (
            f"{source.start}: none of {tour.categories} categories shows a picture that matches "
            f"figure = {source.figure!r} with picture = {source.picture!r} inside; "
            f"look into a category page's HTML and set them.{first}"
        )
    return ""


def _page_opt_out(page: HtmlResponse) -> str:
    """Return the words by which a page keeps its pictures from machine learning, else ""."""
    header = [value.decode("latin-1") for value in page.headers.getlist("X-Robots-Tag")]
    meta = page.css('meta[name="robots" i]::attr(content)').getall()
    reserved = page.headers.get("tdm-reservation", b"").decode("latin-1")
    in_page = page.css('meta[name="tdm-reservation" i]::attr(content)').get("")
    return opt_out(", ".join(header + meta), reserved or in_page)
