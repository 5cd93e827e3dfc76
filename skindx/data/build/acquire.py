"""Bring images into a dataset folder: read what lies here, crawl the web in a process apart."""

import logging
from collections.abc import Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.crawl.crawl_process import CrawlProgress, check_sources, run_crawl
from skindx.data.crawl.fetch_settings import FetchSettings
from skindx.data.ledger import LedgerRow, held_ledger, read_ledger
from skindx.data.sources.image_source import LocalSource, Page, WebSource
from skindx.taxonomy import Taxonomy

EMPTY_SOURCE = "empty-source"
"""Status of a source of several that names nothing; `url` is its name."""

_log = logging.getLogger(__name__)


def acquire(
    sources: Sequence[WebSource | LocalSource],
    fetch: FetchSettings,
    dataset: Path,
    *,
    taxonomy: Taxonomy | None = None,
    on_progress: CrawlProgress | None = None,
) -> list[LedgerRow]:
    """Fetch or read every image of `sources`; return one row a (url, label), ordered.

    The bytes lie in the dataset folder's store. Killed at any moment, the same call goes on where
    it was: a URL with a final answer is not fetched again. `on_progress(done, known)` is called
    while a crawl runs. From the web only labels are fetched that `taxonomy`, if given, has a class
    for; the others have their rows and reasons. A page that could not be read has a row too, its
    `page_url` equal to its `url`, and so has a source that gave nothing, if another one gave
    something. Raises UserError where no source gives anything, and for a full disk; JobError for a
    crawl that breaks.
    """
    web = web_sources(sources)
    if web and check_sources(web, fetch) and fetch.warning:
        _log.warning(fetch.warning)
    dataset.mkdir(parents=True, exist_ok=True)
    report = on_progress or (lambda done, known: None)
    rows: list[LedgerRow] = []
    counted = 0

    def on_image() -> None:
        nonlocal counted
        counted += 1
        report(counted, 0)

    for source in sources:
        if isinstance(source, LocalSource):
            rows += source.gather_slowly(dataset, on_image)
            counted = len(rows)
            report(counted, 0)
    if web:
        crawled, empty = _crawl(web, fetch, dataset, taxonomy=taxonomy, on_progress=report)
        if len(empty) == len(sources):
            raise UserError(next(row.detail for row in empty))
        # Answers come in any order; the dataset must not depend on it.
        rows += sorted((*crawled, *empty), key=lambda row: (row.label, row.url))
    return rows


def web_sources(sources: Sequence[WebSource | LocalSource]) -> list[WebSource]:
    return [source for source in sources if isinstance(source, WebSource)]


def _crawl(
    sources: Sequence[WebSource],
    fetch: FetchSettings,
    dataset: Path,
    *,
    taxonomy: Taxonomy | None,
    on_progress: CrawlProgress,
) -> tuple[list[LedgerRow], list[LedgerRow]]:
    """Crawl; return the rows of images and failed pages, and a row a source without any."""
    with held_ledger(dataset) as lock:
        read_ledger(dataset)  # refuse a damaged one before anything is started
        notes = run_crawl(
            sources, fetch, dataset, taxonomy=taxonomy, lock=lock, on_progress=on_progress
        )
        stored = read_ledger(dataset)
    empty = [
        LedgerRow(
            note["source"],
            "",
            EMPTY_SOURCE,
            note["detail"],
            source=note["source"],
            page_url=note["source"],
        )
        for note in notes
        if note["note"] == "failed"
    ]
    rows = _current(sources, stored)
    rows += [LedgerRow(**note["row"]) for note in notes if note["note"] == "page"]
    return rows, empty


def _current(sources: Sequence[WebSource], stored: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the rows that belong to the sources as they are now.

    A table is known whole, so a line that was taken out of it is gone, and a corrected label
    stands alone. What a page showed earlier stays: the page may be unreadable today.
    """
    paged: set[str] = set()
    listed: set[tuple[str, str, str]] = set()
    for source in sources:
        for item in source.begin():
            if isinstance(item, Page):
                paged.add(source.name)
            else:
                listed.add((source.name, item.url, item.label))
    return [
        row for row in stored if row.source in paged or (row.source, row.url, row.label) in listed
    ]
