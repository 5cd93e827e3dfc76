"""Scrapy's HTTP handler with connections that are kept open, as many as an origin may use."""

from typing import TYPE_CHECKING

from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler

from skindx.data.fetch.settings import FetchSettings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class KeepAliveHandler(HTTP11DownloadHandler):  # type: ignore[misc]
    """Keeps one idle connection for each request that may run at once.

    Scrapy sizes its pool by the default of all hosts, one here: a faster origin would get a new
    connection for nearly every picture, and a small server's queue of them overflows.
    """

    def __init__(self, crawler: "Crawler") -> None:
        super().__init__(crawler)
        fetch: FetchSettings = crawler.settings["SKINDX_FETCH"]
        most = max((policy.concurrency for policy in fetch.origins.values()), default=0)
        self._pool.maxPersistentPerHost = max(most, fetch.concurrency)
