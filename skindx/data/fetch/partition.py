"""Several crawls at once: each host belongs to exactly one of them, so politeness holds."""

import hashlib
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from skindx.config import Settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Request

OTHER_HOST = "other-host"
"""Status of what another crawl, or a later one, must fetch; it never reaches the ledger."""


class Partition(Settings):
    """The hosts of one of `count` crawls: those whose hash leaves the remainder `index`."""

    index: int = Field(ge=0)
    count: int = Field(ge=1)

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.index >= self.count:
            raise ValueError(f"index must be less than count = {self.count}")
        return self

    def holds(self, url: str) -> bool:
        """Tell whether a URL's host belongs to this crawl; the port does not matter."""
        host = (urlsplit(url).hostname or "").rstrip(".")
        digest = hashlib.sha256(host.encode("utf-8", "replace")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index


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
        from skindx.data.fetch.outcome import Outcome, RefusedError

        if self._partition and not self._partition.holds(request.url):
            raise RefusedError(Outcome(OTHER_HOST, "Another crawl fetches from this host."))
