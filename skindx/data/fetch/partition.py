"""Several crawls at once: each host belongs to exactly one of them, so politeness holds."""

from typing import TYPE_CHECKING

from skindx.data.fetch.outcome import OTHER_HOST, Outcome, RefusedError
from skindx.data.fetch.settings import Partition

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Request


class PartitionGuard:
    """Downloader middleware that lets no request pass to another crawl's host.

    It stands before all others, so that it sees robots.txt and each hop of a redirect too.
    """

    def __init__(self, crawler: "Crawler") -> None:
        self._partition: Partition | None = crawler.settings["SKINDX_FETCH"].partition

    @classmethod
    def from_crawler(cls, crawler: "Crawler") -> "PartitionGuard":
        """Build the middleware; called by Scrapy."""
        return cls(crawler)

    def process_request(self, request: "Request") -> None:
        """Refuse a request to another crawl's host. Raises RefusedError."""
        if self._partition and not self._partition.holds(request.url):
            raise RefusedError(Outcome(OTHER_HOST, "Another crawl fetches from this host."))
