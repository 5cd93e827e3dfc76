"""Reads the pages of web sources and fetches the images that they lead to.

Pages of earlier crawls are kept: a server that says "304 Not Modified" need not send one again.
Conditional requests, RFC 9110 section 13: the `ETag` and `Last-Modified` of an answer come back to
the server as `If-None-Match` and `If-Modified-Since`.
"""

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import thread_time, time
from typing import Any

from scrapy import Spider
from scrapy.http import HtmlResponse, Request, Response

from skindx.core.atomic_files import atomic_file
from skindx.core.text import counted
from skindx.data.crawl.fetch_outcome import (
    PASSING,
    REFUSALS,
    REPLACEABLE,
    CrawlState,
    FetchOutcome,
    of_answer,
    of_error,
    of_image,
    page_opt_out,
)
from skindx.data.crawl.fetch_settings import FetchSettings, origin_of
from skindx.data.crawl.middleware import ANSWER, ENDPOINT, IS_BUSY
from skindx.data.layout import PAGES
from skindx.data.ledger import LedgerRow
from skindx.data.sources.image_source import (
    Choice,
    Page,
    SearchCount,
    UnreadablePageError,
    WebSource,
)

NOT_MODIFIED = 304
MOST_IMAGES = 10_000
"""Most images of one page, and of one figure."""
PAGE_S = 10.0
_PAGE_BYTES = 4_000_000
_PAGE_PRIORITY = 10  # pages before images, so that progress knows early how many there are

PageItem = Page | LedgerRow | Choice
"""What a page leads to."""

_HEADERS = ("ETag", "Last-Modified", "Content-Type", "X-Robots-Tag", "tdm-reservation")
_LONGEST = 1000
_WHOLE_S = 86_400
"""Greatest age in seconds of an answer that is read instead of asking again."""


@dataclass(frozen=True, slots=True)
class KeptPage:
    """An answer as it came: what the source reads of it, and by what the server knows it."""

    url: str
    headers: dict[str, list[str]]
    body: bytes

    @property
    def is_whole(self) -> bool:
        """Tell whether it is read as it is: a run before kept it, and has not come to its end."""
        return not self.conditions

    def answer(self) -> Response:
        return Response(self.url, headers=self.headers, body=self.body)

    @property
    def conditions(self) -> dict[str, str]:
        """The headers of a request that asks only whether the page has changed."""
        headers = {"ETag": "If-None-Match", "Last-Modified": "If-Modified-Since"}
        return {headers[name]: self.headers[name][0] for name in headers if name in self.headers}


class PageCache:
    """The kept pages of one dataset folder, one file a URL."""

    def __init__(self, dataset: Path) -> None:
        self._folder = dataset / PAGES
        self._used: set[Path] = set()
        self._unfinished: set[Path] = set()
        """Files of pages without conditions for asking again."""

    def find(self, url: str) -> KeptPage | None:
        """Return a page as it was kept; None for an unknown one, and for a damaged file."""
        file = self._file(url)
        try:
            with gzip.open(file) as lines:
                saved = json.loads(lines.readline())
                page = KeptPage(saved["url"], saved["headers"], lines.read())
            if page.url != url or (page.is_whole and time() - file.stat().st_mtime > _WHOLE_S):
                return None
            self._used.add(file)
            if page.is_whole:
                self._unfinished.add(file)
            return page
        except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError):
            file.unlink(missing_ok=True)
            return None

    def keep(self, url: str, answer: Response, *, always: bool = False) -> None:
        """Keep an answer that the server can recognise, unless it forbids that or came from afar.

        After a redirect the answer belongs to another URL. With `always` another one is kept too,
        which the next run reads instead of asking if this one does not come to its end: an API
        counts its answers.
        """
        headers = {
            name: [value.decode("latin-1")[:_LONGEST] for value in answer.headers.getlist(name)]
            for name in _HEADERS
            if name in answer.headers
        }
        page = KeptPage(url, headers, answer.body)
        control = b",".join(answer.headers.getlist("Cache-Control")).lower()
        unknown = page.is_whole and not always
        if answer.url != url or unknown or b"no-store" in control:
            self._file(url).unlink(missing_ok=True)
            return
        saved = {name: value for name, value in asdict(page).items() if name != "body"}
        with atomic_file(self._file(url)) as temporary, gzip.open(temporary, "wb", 6) as file:
            file.write(json.dumps(saved).encode() + b"\n" + page.body)
        self._used.add(self._file(url))
        if page.is_whole:
            self._unfinished.add(self._file(url))

    def sweep(self, *, whole: bool) -> None:
        """Delete the pages that this run did not request: no page links to them.

        `whole`: every page was read, so that the next run asks for all of them again.
        """
        for file in self._folder.glob("*"):
            if file not in self._used or (whole and file in self._unfinished):
                file.unlink(missing_ok=True)

    def _file(self, url: str) -> Path:
        name = hashlib.sha256(url.encode("utf-8", "replace")).hexdigest()
        return self._folder / f"{name}.gz"


@dataclass(slots=True)
class SourceVisit:
    """The pages and images of a source that a crawl knows."""

    source: WebSource
    pages: set[tuple[str, str]] = field(default_factory=set)
    """(url, label): a page that two labels lead to is read for both."""
    read: list[Page] = field(default_factory=list)
    """Pages that could be read, in their order."""
    showing: set[str] = field(default_factory=set)
    """Labels of those that name an image."""
    images: set[tuple[str, str]] = field(default_factory=set)
    """(url, label)."""
    counts: Counter[str] = field(default_factory=Counter)
    """Images of each label."""
    cut: set[str] = field(default_factory=set)
    """Labels with more pages than are read."""
    named: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Images by the first page of their series and their label."""
    promises: dict[tuple[str, str], SearchCount] = field(default_factory=dict)
    """Promised number of images, by the same keys."""
    beyond: set[str] = field(default_factory=set)
    """Labels of which the source names more than max_pictures."""
    failures: list[str] = field(default_factory=list)
    """Failures of pages, a sentence each."""
    passing: bool = False
    """Whether one of them may be read by the next run."""

    def empty_pages(self) -> list[Page]:
        """Return the first page of each label whose pages were read and show no image."""
        first = {page.label: page for page in reversed(self.read) if page.label}
        return [page for label, page in first.items() if label not in self.showing]

    def full(self, label: str) -> bool:
        """Tell whether the source may give no more of a label, though it has more."""
        most = self.source.max_pictures
        if most is None or self.counts[label] < most:
            return False
        self.beyond.add(label)
        return True

    def unread(self) -> Iterator[tuple[str, str, str]]:
        """Yield (URL, label, sentence) of each search with more results than were read."""
        said = set()
        most = self.source.max_pictures
        cap = f"max_pictures takes the first {counted(most or 0, 'image')} of a label."
        for (url, label), promise in self.promises.items():
            named = self.named[url, label]
            if promise.limit or named < promise.results:
                sentence = f"The search promises {counted(promise.results, 'result')}; "
                sentence += f"what was read names {named} of them."
                whys = (promise.limit, cap if label in self.beyond else "")
                said.add(label)
                yield url, label, " ".join(filter(None, (sentence, *whys)))
        for label in sorted(self.beyond - said):
            yield self.source.name, label, f"The source names more than were taken: {cap}"


def _in_time(items: Iterator[PageItem]) -> Iterator[PageItem]:
    """Yield what a page leads to, while reading it has taken less than PAGE_S of processor time.

    One thread serves all hosts of a crawl. Raises UnreadablePageError.
    """
    spent_s = 0.0
    while True:
        begin_s = thread_time()
        item = next(items, None)
        if item is None:
            return
        spent_s += thread_time() - begin_s
        yield item
        if spent_s > PAGE_S:
            detail = f"Reading it takes more than {PAGE_S:g} s; the rest is left out."
            raise UnreadablePageError("too-complex", detail)


class ImageSpider(Spider):  # type: ignore[misc]
    """One crawl over all web sources."""

    name = "skindx"

    def __init__(
        self, sources: Sequence[WebSource], fetch: FetchSettings, dataset: Path, state: CrawlState
    ) -> None:
        super().__init__()
        self._visits = [SourceVisit(source) for source in sources]
        self._fetch = fetch
        self._dataset = dataset
        self._state = state
        self._kept = PageCache(dataset)
        self._smaller: dict[tuple[str, str], list[Callable[[], Iterator[Request]]]] = {}
        """Functions that ask for an image at its next address, by the (url, md5) being fetched."""

    async def start(self) -> AsyncIterator[Request]:
        """Ask for what each source begins with: pages, or a whole table of images."""
        first = [
            request
            for visit in self._visits
            for request in self._follow(visit, visit.source.begin())
        ]
        self._state.report()
        for request in first:
            yield request

    def finish(self) -> None:
        """Note the end once the crawl has ended by itself."""
        for visit in self._visits:
            for page in visit.empty_pages():
                self._page_failed(
                    visit, page, FetchOutcome("no-pictures", visit.source.nothing_shown())
                )
            for url, label, sentence in visit.unread():
                more = FetchOutcome("more-results", sentence)
                self._state.page_failed(url, label, visit.source.name, more)
            if not visit.images:
                labels = {label for _, label in visit.pages if label}
                sentence = visit.source.barren(len(labels), visit.failures)
                self._state.source_failed(visit.source.name, sentence)
        self._kept.sweep(whole=not any(visit.passing for visit in self._visits))
        self._state.close()

    def _follow(
        self, visit: SourceVisit, items: Iterator[PageItem], forbidden: str = ""
    ) -> Iterator[Request]:
        for item in items:
            if isinstance(item, Page):
                yield from self._page(visit, item)
                continue
            first, *smaller = (item,) if isinstance(item, LedgerRow) else item
            yield from self._image_row(visit, first, tuple(smaller), forbidden)

    def _page(self, visit: SourceVisit, page: Page) -> Iterator[Request]:
        if (page.url, page.label) in visit.pages or visit.full(page.label):
            return
        try:
            origin_of(page.url)
        except ValueError:
            problem = FetchOutcome("bad-url", "Only http and https addresses are fetched.")
            self._page_failed(visit, page, problem)
            return
        limit = min(self._fetch.max_pages, visit.source.max_pages or self._fetch.max_pages)
        if len(visit.pages) >= limit:
            detail = f"The source has more than max_pages = {limit} pages."
            if page.label not in visit.cut:  # a page may link to any number of others
                visit.cut.add(page.label)
                self._page_failed(visit, page, FetchOutcome("too-many-pages", detail))
            return
        visit.pages.add((page.url, page.label))
        yield self._page_request(visit, page, self._kept.find(page.url))

    def _page_request(self, visit: SourceVisit, page: Page, kept: KeptPage | None) -> Request:
        """Ask for a page, or whether it has changed since it was kept."""

        def answered(response: Response) -> Iterator[Request]:
            if response.status == NOT_MODIFIED and kept:
                if response.url != page.url:  # not the server that knows what was kept
                    yield self._page_request(visit, page, None)
                    return
                response = response.replace(
                    status=200, body=kept.body, headers={**kept.headers, **response.headers}
                )
            problem = of_answer(response)
            if problem:
                if words := visit.source.problem(response):
                    problem = replace(problem, detail=f"{problem.detail} It says: {words}")
                self._page_failed(visit, page, problem)
                return
            if not (kept and kept.is_whole):
                self._kept.keep(page.url, response, always=bool(visit.source.endpoint))
            yield from self._read(visit, page, response)
            self._state.report()

        def failed(failure: Any) -> None:
            url = failure.request.url
            problem = of_error(failure.value, self._fetch.timeout_s, _PAGE_BYTES, url)
            self._page_failed(visit, page, problem)

        return Request(
            page.url,
            answered,
            errback=failed,
            headers=kept.conditions if kept else None,
            priority=_PAGE_PRIORITY,
            dont_filter=True,
            meta={
                "download_maxsize": _PAGE_BYTES,
                ENDPOINT: visit.source.endpoint,
                IS_BUSY: visit.source.is_busy,
                ANSWER: kept.answer() if kept and kept.is_whole else None,
            },
        )

    def _read(self, visit: SourceVisit, page: Page, answer: Response) -> Iterator[Request]:
        if visit.source.html:
            # Whatever Content-Type says; a page without links is reported as such.
            answer = HtmlResponse(answer.url, headers=answer.headers, body=answer.body)

        def counted() -> Iterator[PageItem]:
            images = 0
            series = (page.start or page.url, page.label)
            if not page.start and (promise := visit.source.promise(answer)):
                visit.promises[series] = promise
            for item in _in_time(visit.source.read(page, answer)):
                if not isinstance(item, Page):
                    visit.showing.add(page.label)
                    visit.named[series] += 1
                    images += 1
                    if images > MOST_IMAGES:
                        raise UnreadablePageError(
                            "too-many-pictures",
                            f"It shows more than {MOST_IMAGES} images; the rest is left out.",
                        )
                yield item
            visit.read.append(page)

        try:
            yield from self._follow(visit, counted(), page_opt_out(answer))
        except UnreadablePageError as error:
            self._page_failed(visit, page, FetchOutcome(error.status, error.detail))

    def _page_failed(self, visit: SourceVisit, page: Page, problem: FetchOutcome) -> None:
        visit.failures.append(f"{page.url}: {problem.detail}")
        visit.passing |= problem.status in PASSING
        visit.promises.pop((page.start or page.url, page.label), None)  # this says it already
        self._state.page_failed(page.url, page.label, visit.source.name, problem)

    def _image_row(
        self, visit: SourceVisit, image: LedgerRow, smaller: Choice, forbidden: str
    ) -> Iterator[Request]:
        """Ask for an image; its `smaller` versions are asked for one by one if there is none."""
        key = (image.url, image.label)
        if key not in visit.images:
            if visit.full(image.label):
                return
            visit.images.add(key)
            visit.counts[image.label] += 1
        yield from self._fetch_one(visit, image, smaller, forbidden)

    def _fetch_one(
        self, visit: SourceVisit, row: LedgerRow, smaller: Choice, forbidden: str
    ) -> Iterator[Request]:
        if forbidden and not row.status:
            detail = f"The page that shows it forbids this use ({forbidden})."
            row = replace(row, status="opt-out", detail=detail)
        wanted = self._state.wants(row)

        def next_one() -> Iterator[Request]:
            status = self._state.status(row)
            if status in REFUSALS:
                self._state.forbid(row, smaller)
            elif smaller and status in REPLACEABLE:
                yield from self._fetch_one(visit, smaller[0], smaller[1:], forbidden)
                self._state.report()

        if self._state.status(row):
            yield from next_one()
        elif smaller:
            self._smaller.setdefault((row.url, row.md5), []).append(next_one)
        if wanted:
            yield self._request(visit.source.address(row.url), row)

    def _request(self, url: str, row: LedgerRow) -> Request:
        def answered(response: Response) -> Iterator[Request]:
            yield from self._answered(row, of_image(response, self._dataset, row.md5))

        def failed(failure: Any) -> Iterator[Request]:
            outcome = of_error(
                failure.value, self._fetch.timeout_s, self._fetch.max_bytes, failure.request.url
            )
            yield from self._answered(row, outcome)

        return Request(url, answered, errback=failed, dont_filter=True)

    def _answered(self, row: LedgerRow, outcome: FetchOutcome) -> Iterator[Request]:
        self._state.answer(row, outcome)
        for next_one in self._smaller.pop((row.url, row.md5), []):
            yield from next_one()
