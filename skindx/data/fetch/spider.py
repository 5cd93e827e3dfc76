"""Reads the pages of web sources and fetches the images that they lead to."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.http import HtmlResponse, Request, Response

from skindx.data.fetch.crawl_state import CrawlState
from skindx.data.fetch.outcome import (
    REPLACEABLE,
    Outcome,
    of_answer,
    of_error,
    of_image,
    opt_out,
)
from skindx.data.fetch.page_cache import KeptPage, PageCache
from skindx.data.fetch.robots import ENDPOINT
from skindx.data.fetch.settings import FetchSettings, origin_of
from skindx.data.ledger import LedgerRow
from skindx.data.sources import Page, UnreadablePageError, WebSource
from skindx.data.sources.source import Choice

NOT_MODIFIED = 304
_PAGE_BYTES = 4_000_000
_PAGE_PRIORITY = 10  # pages before images, so that progress knows early how many there are


@dataclass(slots=True)
class Tour:
    """What has been found of one source so far."""

    source: WebSource
    pages: set[tuple[str, str]] = field(default_factory=set)
    """(url, label): a page that two labels lead to is read for both."""
    read: list[Page] = field(default_factory=list)
    """Those pages that could be read, in their order."""
    showing: set[str] = field(default_factory=set)
    """Labels of those that name an image."""
    pictures: set[tuple[str, str]] = field(default_factory=set)
    """(url, label)."""
    counts: Counter[str] = field(default_factory=Counter)
    """Images of each label."""
    failures: list[str] = field(default_factory=list)

    def empty_pages(self) -> list[Page]:
        """Return the first page of each label whose pages were read and show no image."""
        first = {page.label: page for page in reversed(self.read) if page.label}
        return [page for label, page in first.items() if label not in self.showing]

    def full(self, label: str) -> bool:
        """Tell whether the source may give no more of a label."""
        most = self.source.max_pictures
        return most is not None and self.counts[label] >= most


class ImageSpider(Spider):  # type: ignore[misc]
    """One crawl over all web sources."""

    name = "skindx"

    def __init__(
        self, sources: Sequence[WebSource], fetch: FetchSettings, dataset: Path, state: CrawlState
    ) -> None:
        super().__init__()
        self._tours = [Tour(source) for source in sources]
        self._fetch = fetch
        self._dataset = dataset
        self._state = state
        self._kept = PageCache(dataset)
        self._smaller: dict[tuple[str, str], list[Callable[[], Iterator[Request]]]] = {}
        """By (url, md5) that is being fetched: how to ask for the image at its next address."""

    async def start(self) -> AsyncIterator[Request]:
        """Ask for what each source begins with: pages, or a whole table of images."""
        first = [
            request for tour in self._tours for request in self._follow(tour, tour.source.begin())
        ]
        self._state.report()
        for request in first:
            yield request

    def finish(self) -> None:
        """Note the end once the crawl has ended by itself."""
        for tour in self._tours:
            for page in tour.empty_pages():
                self._page_failed(tour, page, Outcome("no-pictures", tour.source.nothing_shown()))
            if not tour.pictures:
                labels = {label for _, label in tour.pages if label}
                sentence = tour.source.barren(len(labels), tour.failures)
                self._state.source_failed(tour.source.name, sentence)
        if self._fetch.partition is None:
            self._kept.sweep()
        self._state.close()

    def _follow(
        self, tour: Tour, found: Iterator[Page | LedgerRow | Choice], forbidden: str = ""
    ) -> Iterator[Request]:
        for item in found:
            if isinstance(item, Page):
                yield from self._page(tour, item)
            elif isinstance(item, LedgerRow):
                yield from self._image_row(tour, item, (), forbidden)
            else:
                yield from self._image_row(tour, item[0], item[1:], forbidden)

    def _page(self, tour: Tour, page: Page) -> Iterator[Request]:
        if (page.url, page.label) in tour.pages or tour.full(page.label):
            return
        try:
            origin_of(page.url)
        except ValueError:
            problem = Outcome("bad-url", "Only http and https addresses are fetched.")
            self._page_failed(tour, page, problem)
            return
        limit = min(self._fetch.max_pages, tour.source.max_pages or self._fetch.max_pages)
        if len(tour.pages) >= limit:
            detail = f"The source has more than max_pages = {limit} pages."
            self._page_failed(tour, page, Outcome("too-many-pages", detail))
            return
        tour.pages.add((page.url, page.label))
        yield self._page_request(tour, page, self._kept.find(page.url))

    def _page_request(self, tour: Tour, page: Page, kept: KeptPage | None) -> Request:
        """Ask for a page, or whether it has changed since it was kept."""

        def answered(response: Response) -> Iterator[Request]:
            if response.status == NOT_MODIFIED and kept:
                if response.url != page.url:  # not the server that knows what was kept
                    yield self._page_request(tour, page, None)
                    return
                response = response.replace(
                    status=200, body=kept.body, headers={**kept.headers, **response.headers}
                )
            problem = of_answer(response)
            if problem:
                self._page_failed(tour, page, problem)
                return
            self._kept.keep(page.url, response)
            yield from self._read(tour, page, response)
            self._state.report()

        def failed(failure: Any) -> None:
            url = failure.request.url
            problem = of_error(failure.value, self._fetch.timeout_s, _PAGE_BYTES, url)
            self._page_failed(tour, page, problem)

        return Request(
            page.url,
            answered,
            errback=failed,
            headers=kept.conditions if kept else None,
            priority=_PAGE_PRIORITY,
            dont_filter=True,
            meta={"download_maxsize": _PAGE_BYTES, ENDPOINT: tour.source.endpoint},
        )

    def _read(self, tour: Tour, page: Page, answer: Response) -> Iterator[Request]:
        if tour.source.html:
            # Whatever Content-Type says; a page without links is told as such.
            answer = HtmlResponse(answer.url, headers=answer.headers, body=answer.body)

        def found() -> Iterator[Page | LedgerRow | Choice]:
            for item in tour.source.read(page, answer):
                if not isinstance(item, Page):
                    tour.showing.add(page.label)
                yield item
            tour.read.append(page)

        try:
            yield from self._follow(tour, found(), _page_opt_out(answer))
        except UnreadablePageError as error:
            self._page_failed(tour, page, Outcome(error.status, error.detail))

    def _page_failed(self, tour: Tour, page: Page, problem: Outcome) -> None:
        tour.failures.append(f"{page.url}: {problem.detail}")
        self._state.page_failed(page.url, page.label, tour.source.name, problem)

    def _image_row(
        self, tour: Tour, found: LedgerRow, smaller: Choice, forbidden: str
    ) -> Iterator[Request]:
        """Ask for an image; its `smaller` versions are asked for one by one if there is none."""
        key = (found.url, found.label)
        if key not in tour.pictures:
            if tour.full(found.label):
                return
            tour.pictures.add(key)
            tour.counts[found.label] += 1
        yield from self._fetch_one(tour, found, smaller, forbidden)

    def _fetch_one(
        self, tour: Tour, found: LedgerRow, smaller: Choice, forbidden: str
    ) -> Iterator[Request]:
        refusal = f"The page that shows it forbids this use ({forbidden})."
        refused = forbidden and not found.status
        row = replace(found, status="opt-out", detail=refusal) if refused else found
        asked = self._state.wants(row)

        def next_one() -> Iterator[Request]:
            if smaller and self._state.status(row) in REPLACEABLE:
                yield from self._fetch_one(tour, smaller[0], smaller[1:], forbidden)
                self._state.report()

        if self._state.status(row):
            yield from next_one()
        elif smaller:
            self._smaller.setdefault((row.url, row.md5), []).append(next_one)
        if asked:
            yield self._request(tour.source.address(row.url), row)

    def _request(self, url: str, row: LedgerRow) -> Request:
        def answered(response: Response) -> Iterator[Request]:
            yield from self._settled(row, of_image(response, self._dataset, row.md5))

        def failed(failure: Any) -> Iterator[Request]:
            outcome = of_error(
                failure.value, self._fetch.timeout_s, self._fetch.max_bytes, failure.request.url
            )
            yield from self._settled(row, outcome)

        return Request(url, answered, errback=failed, dont_filter=True)

    def _settled(self, row: LedgerRow, outcome: Outcome) -> Iterator[Request]:
        self._state.answer(row, outcome)
        for next_one in self._smaller.pop((row.url, row.md5), []):
            yield from next_one()


def _page_opt_out(page: Response) -> str:
    """Return the words by which a page keeps its images from machine learning, else ""."""
    robots = [value.decode("latin-1") for value in page.headers.getlist("X-Robots-Tag")]
    reserved = page.headers.get("tdm-reservation", b"").decode("latin-1")
    if isinstance(page, HtmlResponse):
        robots += page.css('meta[name="robots" i]::attr(content)').getall()
        in_page = page.css('meta[name="tdm-reservation" i]::attr(content)').get("")
        reserved = reserved or in_page
    return opt_out(", ".join(robots), reserved)
