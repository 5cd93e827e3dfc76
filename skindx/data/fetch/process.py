"""The crawl process: reads its job from standard input, answers through the ledger alone."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skindx.core.errors import FULL_DISK, no_room
from skindx.core.settings_base import Settings
from skindx.data.fetch.settings import FetchSettings, OriginPolicy, origin_of
from skindx.data.sources.source import Source, WebSource
from skindx.taxonomy import Taxonomy
from skindx.workers.process import exit_with_parent


class Job(Settings):
    """The parent's request, one line of JSON on standard input."""

    sources: tuple[Source, ...]
    fetch: FetchSettings
    dataset: Path
    tried: frozenset[str] = frozenset()
    """URLs that failed in this very run; what the ledger says of them is final for now."""
    taxonomy: Taxonomy | None = None
    """Labels with a class; others are not fetched. None: all are fetched."""


def main() -> int:
    """Run one crawl; 0 if it came to its end, with its results in the ledger."""
    job = Job.model_validate_json(sys.stdin.buffer.readline())
    # Ctrl-C reaches the whole group; the parent decides, and ends this process by closing stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    return 0 if crawl(job) else 1


def crawl(job: Job) -> bool:
    """Crawl and tell whether all came to its end. Once a process: the reactor cannot restart."""
    from scrapy import signals
    from scrapy.crawler import AsyncCrawlerProcess

    from skindx.data.blocklist import read_blocklist
    from skindx.data.fetch.crawl_state import CrawlState
    from skindx.data.fetch.scrapy_settings import scrapy_settings
    from skindx.data.fetch.spider import ImageSpider
    from skindx.data.layout import BLOCKLIST
    from skindx.data.ledger import open_ledger, read_ledger

    ended = []
    sources = [source for source in job.sources if isinstance(source, WebSource)]
    with open_ledger(job.dataset) as ledger:
        fetch = with_endpoints(job.fetch, sources)
        blocked = read_blocklist(job.dataset / BLOCKLIST)
        earlier = read_ledger(job.dataset)
        state = CrawlState(
            ledger,
            earlier,
            job.dataset,
            blocked=blocked,
            tried=job.tried,
            taxonomy=job.taxonomy,
        )
        process = AsyncCrawlerProcess(scrapy_settings(fetch))
        crawler = process.create_crawler(ImageSpider)

        def closed(spider: ImageSpider, reason: str) -> None:
            if reason == "finished":
                spider.finish()
                ended.append(True)

        def broken(failure: Any) -> None:
            # A row would be missing: better no end at all than an end with a gap.
            os._exit(FULL_DISK if no_room(failure.value) else 4)

        crawler.signals.connect(closed, signals.spider_closed)
        crawler.signals.connect(broken, signals.spider_error)
        process.crawl(crawler, sources=sources, fetch=fetch, dataset=job.dataset, state=state)
        process.start(install_signal_handlers=False)
    return bool(ended)


def with_endpoints(fetch: FetchSettings, sources: Sequence[WebSource]) -> FetchSettings:
    """Give each API its own delay, one request at once; origins that the user named win."""
    origins = {
        origin_of(source.endpoint): OriginPolicy(concurrency=1, delay_s=source.request_delay_s)
        for source in sources
        if source.endpoint and source.request_delay_s is not None
    }
    return fetch.model_copy(update={"origins": origins | fetch.origins})
