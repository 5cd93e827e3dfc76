"""Each origin has its own slot, delay and retries; a server that asks for time gets it."""

import logging
from collections import Counter
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING

from scrapy.utils.asyncio import call_later

from skindx.data.fetch.heads import head_too_long
from skindx.data.fetch.outcome import (
    RETRIED_CODES,
    RETRIED_ERRORS,
    UNREACHABLE,
    Outcome,
    RefusedError,
    of_error,
)
from skindx.data.fetch.robots import CRAWL_DELAY, IS_RULES
from skindx.data.fetch.settings import FetchSettings, origin_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Request, Response

log = logging.getLogger(__name__)


class Politeness:
    """Downloader middleware: gives each request its origin's slot, and repeats what may pass."""

    def __init__(self, crawler: "Crawler") -> None:
        self._crawler = crawler
        self._fetch: FetchSettings = crawler.settings["SKINDX_FETCH"]
        self._left_alone: dict[str, Outcome] = {}
        self._told: set[str] = set()
        self._answered: set[str] = set()
        self._in_vain: Counter[str] = Counter()

    @classmethod
    def from_crawler(cls, crawler: "Crawler") -> "Politeness":
        """Build the middleware; called by Scrapy."""
        return cls(crawler)

    def process_request(self, request: "Request") -> None:
        """Put a request into its origin's slot. Raises RefusedError for an origin left alone."""
        try:
            origin = origin_of(request.url)
        except ValueError as error:
            raise RefusedError(Outcome("bad-url", f"{error}.")) from None
        if origin in self._left_alone:
            raise RefusedError(self._left_alone[origin])
        # Set again for every hop: a redirect carries its first origin's slot and flags along.
        request.meta["download_slot"] = origin
        # AutoThrottle would shorten what robots.txt asks for.
        own = origin in self._fetch.origins or self._asked_s(request, origin) > 0
        request.meta["autothrottle_dont_adjust_delay"] = own

    def process_response(self, request: "Request", response: "Response") -> "Request | Response":
        """Repeat a request that the server could not answer now."""
        self._answered.add(origin_of(request.url))
        self._tell(request)
        if response.status not in RETRIED_CODES:
            return response
        asked_s = retry_after_s(response.headers.get("Retry-After", b"").decode("latin-1"))
        if asked_s is not None and asked_s > self._fetch.retry_after_s:
            origin = origin_of(request.url)
            self._left_alone[origin] = Outcome(
                "server-error",
                f"{origin} answered {response.status} and asked to wait {asked_s:g} s, longer "
                f"than retry_after_s = {self._fetch.retry_after_s:g}: left alone for this run.",
            )
            raise RefusedError(self._left_alone[origin])
        return self._again(request, asked_s) or response

    def process_exception(self, request: "Request", exception: Exception) -> "Request | None":
        """Repeat a request whose connection failed, unless the host does not exist."""
        if not isinstance(exception, RETRIED_ERRORS) or head_too_long(exception):
            return None
        if isinstance(exception, UNREACHABLE) and self._given_up(request, exception):
            return None
        return self._again(request, None)

    def _given_up(self, request: "Request", exception: Exception) -> bool:
        """Tell whether an origin that never answered was now tried often enough for this run.

        Its other requests are then refused at once: without a network a build ends soon.
        """
        origin = origin_of(request.url)
        if origin in self._answered:
            return False
        self._in_vain[origin] += 1
        if self._in_vain[origin] <= self._fetch.retries:
            return False
        self._left_alone[origin] = of_error(exception, self._fetch.timeout_s, self._fetch.max_bytes)
        return True

    def _asked_s(self, request: "Request", origin: str) -> float:
        """Return the Crawl-delay where it is longer than the origin's own delay, else 0."""
        asked_s: float = request.meta.get(CRAWL_DELAY, 0.0)
        return asked_s if asked_s > self._fetch.policy(origin).delay_s else 0.0

    def _tell(self, request: "Request") -> None:
        """Log once how an origin is treated, as its slot really is."""
        origin = request.meta["download_slot"]
        slot = self._crawler.engine.downloader.slots.get(origin)
        # With the answer to robots.txt itself it is too early: its rules may slow the slot down.
        if slot is None or origin in self._told or request.meta.get(IS_RULES):
            return
        self._told.add(origin)
        throttle = "off" if request.meta["autothrottle_dont_adjust_delay"] else "on"
        how = "%s: %d at once, delay %.2f s, AutoThrottle %s"
        log.info(how, origin, slot.concurrency, slot.delay, throttle)

    def _again(self, request: "Request", asked_s: float | None) -> "Request | None":
        times = request.meta.get("retry_times", 0)
        if times >= self._fetch.retries:
            return None
        policy = self._fetch.policy(origin_of(request.url))
        self._pause(request, policy.delay_s * 2**times if asked_s is None else asked_s)
        log.info("Trying %s again (%d)", request.url, times + 1)
        return request.replace(
            meta={**request.meta, "retry_times": times + 1},
            dont_filter=True,
            priority=request.priority - 1,
        )

    def _pause(self, request: "Request", wait_s: float) -> None:
        """Let the whole origin rest: requests already in its queue wait as well."""
        downloader = self._crawler.engine.downloader
        slot = downloader.slots.get(request.meta["download_slot"])
        if not wait_s or slot is None:
            return
        if slot.latercall:
            slot.latercall.cancel()
        # The downloader sends nothing from a slot that has a later call; it restarts the queue.
        slot.latercall = call_later(wait_s, downloader._latercall, slot)


def retry_after_s(value: str) -> float | None:
    """Return the seconds that a Retry-After header asks for, None if it says nothing usable."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, OverflowError):
        return None
