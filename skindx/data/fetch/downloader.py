"""Corrections to Scrapy's downloader: exact concurrency, Crawl-delay, what a connection may do."""

from typing import TYPE_CHECKING, Any

from scrapy.core.downloader import Downloader
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler

from skindx.data.fetch.heads import LimitedFactory
from skindx.data.fetch.robots import CRAWL_DELAY
from skindx.data.fetch.settings import FetchSettings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


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
        asked_s = request.meta.get(CRAWL_DELAY, 0.0)
        if asked_s > slot.delay:
            slot.delay, slot.concurrency = asked_s, 1
        return key, slot

    def _wait_for_download(self, slot: Any, request: Any, answer: Any) -> Any:
        slot.transferring.add(request)  # a set: Scrapy adds it again, and removes it at the end
        return super()._wait_for_download(slot, request, answer)
