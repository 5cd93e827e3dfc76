"""Downloader middlewares that decide who may be asked, and when: partition, robots.txt, politeness.

Each origin has its own slot, delay and retries; a server that asks for time gets it. robots.txt
(RFC 9309) is read without a race: no request of a host starts before its rules are known. Scrapy's
own middleware lets all but the first of the requests through that wait for the same robots.txt,
which is how disallowed pages get fetched.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit

from scrapy.http import Request
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.asyncio import call_later

from skindx.data.crawl.fetch_outcome import (
    REFUSALS,
    RETRIED_CODES,
    RETRIED_ERRORS,
    UNREACHABLE,
    FetchOutcome,
    RefusedError,
    of_answer,
    of_error,
)
from skindx.data.crawl.fetch_settings import AGENT, FetchSettings, origin_of
from skindx.data.crawl.transport import CRAWL_DELAY, head_too_long

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

log = logging.getLogger(__name__)

ENDPOINT = "skindx_endpoint"
"""Request meta: the official API below whose URL robots.txt is not asked (WebSource.endpoint)."""
IS_BUSY = "skindx_is_busy"
"""Request meta: tells of an answer of status 200 that it only says to come again later."""
ANSWER = "skindx_answer"
"""Request meta: the answer that a run kept which has not come to its end; nobody is asked."""
IS_RULES = "skindx_robots_txt"
"""Request meta: this is a request for robots.txt itself."""

_NO_TRAINING = re.compile(
    r"^[ \t]*(content-signal[ \t]*:.*\bai-train[ \t]*=[ \t]*no\b"
    r"|content-usage[ \t]*:.*\btrain-ai[ \t]*=[ \t]*n\b)",
    re.IGNORECASE | re.MULTILINE,
)
"""What a robots.txt says about machine learning: contentsignals.org, and the IETF's AI preferences.

A refusal counts for all robots and paths, as with noai."""
_MAX_BYTES = 512_000  # RFC 9309 section 2.5 asks for at least 500 KiB

_ARCHIVED = re.compile(r"/web/\d{1,14}[a-z_]*/(?=[^/]+\.)")
_PHOTON = re.compile(r"i\d\.wp\.com")
_URL_PARAMETERS = frozenset(
    {"url", "u", "src", "source", "image", "img", "uri", "href", "file", "path"}
)
_IMAGE = re.compile(r"\.(jpe?g|jpe|jfif|png|webp|bmp|tiff?|gif|avif|heic)$", re.IGNORECASE)
_MOST_CARRIED = 4
_MOST_PAIRS = 100


class CrawlMiddleware:
    """A downloader middleware that knows the crawler and the settings of the crawl."""

    def __init__(self, crawler: "Crawler") -> None:
        self._crawler = crawler
        self._fetch: FetchSettings = crawler.settings["SKINDX_FETCH"]

    @classmethod
    def from_crawler(cls, crawler: "Crawler") -> Self:
        return cls(crawler)


@dataclass(frozen=True, slots=True)
class _RobotsRules:
    """Permissions of one origin: a parsed robots.txt, or the reason why nothing may be fetched."""

    parser: Any = None
    refusal: FetchOutcome | None = None
    delay_s: float = 0.0

    def refuses(self, url: str) -> FetchOutcome | None:
        """Return the refusal of one URL, None if it may be fetched."""
        if self.refusal or self.parser.can_fetch(url, AGENT):
            return self.refusal
        return FetchOutcome("robots", f"{origin_of(url)}/robots.txt disallows {url}.")


class RobotsGuard(CrawlMiddleware):
    """Holds each request until its origin's robots.txt has answered."""

    def __init__(self, crawler: "Crawler") -> None:
        super().__init__(crawler)
        self._rules: dict[str, asyncio.Future[_RobotsRules]] = {}

    async def process_request(self, request: Request) -> None:
        """Let an allowed request pass, also each hop of a redirect. Raises RefusedError."""
        # Each hop of a redirect comes here, with the meta of the origin before it; one that leaves
        # an API is a page like any other.
        request.meta[CRAWL_DELAY] = 0.0
        endpoint = request.meta.get(ENDPOINT)
        if request.meta.get(IS_RULES) or (endpoint and request.url.startswith(endpoint)):
            return
        rules = await self._rules_of(_origin(request))
        if refusal := rules.refuses(request.url):
            raise RefusedError(refusal)
        for address in carried(request.url):
            await self._check_carried(address)
        request.meta[CRAWL_DELAY] = rules.delay_s

    async def _check_carried(self, address: str) -> None:
        """Raise RefusedError where the owner of an address that another one carries says no.

        Of a site that is gone an archive may be the only place: there is no host left to obey.
        """
        try:
            rules = await self._rules_of(origin_of(address))
        except ValueError:
            return
        refusal = rules.refuses(address)
        if refusal and refusal.status in REFUSALS:
            raise RefusedError(refusal)

    async def _rules_of(self, origin: str) -> _RobotsRules:
        if origin not in self._rules:
            self._rules[origin] = asyncio.ensure_future(self._ask(origin))
        # The shield keeps one cancelled request from cancelling the rules of all the others.
        return await asyncio.shield(self._rules[origin])

    async def _ask(self, origin: str) -> _RobotsRules:
        """Fetch and parse one robots.txt; whatever happens is an answer."""
        from protego import Protego

        url = f"{origin}/robots.txt"
        request = Request(
            url,
            callback=NO_CALLBACK,
            priority=1000,
            meta={IS_RULES: True, "download_maxsize": _MAX_BYTES},
            dont_filter=True,
        )
        try:
            response = await self._crawler.engine.download_async(request)
        except Exception as error:
            problem = of_error(error, self._fetch.timeout_s, _MAX_BYTES, url)
            return _RobotsRules(refusal=_unreachable(url, problem))
        refused = of_answer(response)
        if refused is None:
            # With a byte order mark Protego would not know the first line, and allow everything.
            text = response.body.decode("utf-8-sig", "replace")
            if signal := _NO_TRAINING.search(text):
                detail = f"{url} forbids training ({' '.join(signal[0].split())[:100]})."
                return _RobotsRules(refusal=FetchOutcome("opt-out", detail))
            parser = Protego.parse(text)
            return _RobotsRules(parser, delay_s=self._delay_s(parser, url))
        # Section 2.3.1.3: a robots.txt that is not there forbids nothing.
        if refused.status in {"dead-link", "forbidden", "empty"}:
            return _RobotsRules(Protego.parse(""))
        return _RobotsRules(refusal=_unreachable(url, refused))

    def _delay_s(self, parser: Any, url: str) -> float:
        """Return the Crawl-delay (no part of RFC 9309, but widely meant), capped and reported."""
        wanted_s = parser.crawl_delay(AGENT) or 0.0
        if not wanted_s > 0:
            return 0.0
        kept_s: float = min(wanted_s, self._fetch.crawl_delay_s)
        capped = f", of which crawl_delay_s keeps {kept_s:g} s" if kept_s < wanted_s else ""
        log.info("%s asks for %g s between requests%s", url, wanted_s, capped)
        return kept_s


def _origin(request: Request) -> str:
    """Return a request's origin. Raises RefusedError for a URL without one."""
    try:
        return origin_of(request.url)
    except ValueError as error:
        raise RefusedError(FetchOutcome("bad-url", f"{error}.")) from None


def _unreachable(url: str, problem: FetchOutcome) -> FetchOutcome:
    """Section 2.3.1.4: rules that cannot be read forbid everything."""
    if problem.status in {"unreachable", "private-address"}:
        return problem  # there is no host to obey, and the image has the same reason
    return FetchOutcome(
        "robots",
        f"{url} could not be read, so nothing of this host is fetched (RFC 9309). {problem.detail}",
        unread=True,
    )


def carried(url: str) -> list[str]:
    """Return the addresses that a URL carries: what an archive, proxy or resizer would send.

    As in https://archive.example/web/2020/https://atlas.example/1.jpg and in
    /thumb.php?src=/full/1.jpg: it gives the image of that address, whoever sends it.
    """
    addresses: dict[str, None] = {}
    waiting = [url]
    while waiting and len(addresses) < _MOST_CARRIED:
        new = [address for address in _carried(waiting.pop()) if address not in addresses]
        addresses |= dict.fromkeys(new)
        waiting += new
    return list(addresses)[:_MOST_CARRIED]


def _carried(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, max_num_fields=_MOST_PAIRS)
    except ValueError:
        return
    path, query = unquote(parts.path), f"?{parts.query}" if parts.query else ""
    # Archives write one slash or two.
    if inner := re.search(r"(?<=.)(https?):/+(?=[^/])", path, re.IGNORECASE):
        yield f"{inner[1]}://{path[inner.end() :]}{query}"
    elif inner := _ARCHIVED.match(path):
        yield f"http://{path[inner.end() :]}{query}"
    elif _PHOTON.fullmatch(parts.hostname or ""):
        yield f"https://{path[1:]}"
    for name, value in pairs:
        whole = re.match(r"(https?:)?//", value, re.IGNORECASE)
        is_image = _IMAGE.search(value.partition("?")[0])
        if is_image or (whole and name.lower() in _URL_PARAMETERS):
            with suppress(ValueError):
                yield urljoin(url, value)


class Politeness(CrawlMiddleware):
    """Gives each request its origin's slot, and repeats what may pass."""

    def __init__(self, crawler: "Crawler") -> None:
        super().__init__(crawler)
        self._left_alone: dict[str, FetchOutcome] = {}
        self._logged: set[str] = set()
        self._answered: set[str] = set()
        self._in_vain: Counter[str] = Counter()

    def process_request(self, request: Request) -> "Response | None":
        """Put a request into its origin's slot. Raises RefusedError for an origin left alone."""
        origin = _origin(request)
        if answer := request.meta.get(ANSWER):
            return answer
        if origin in self._left_alone:
            raise RefusedError(self._left_alone[origin])
        # Set again for every hop: a redirect carries its first origin's slot and flags along.
        request.meta["download_slot"] = origin
        # AutoThrottle would shorten what robots.txt asks for.
        fixed = origin in self._fetch.origins or (
            request.meta.get(CRAWL_DELAY, 0.0) > self._fetch.policy(origin).delay_s
        )
        request.meta["autothrottle_dont_adjust_delay"] = fixed
        return None

    def process_response(self, request: Request, response: "Response") -> "Request | Response":
        """Repeat a request that the server could not answer now."""
        origin = origin_of(request.url)
        if request.meta.get(ANSWER):
            return response
        self._answered.add(origin)
        self._log_slot(request)
        is_busy = request.meta.get(IS_BUSY)
        if response.status not in RETRIED_CODES and not (is_busy and is_busy(response)):
            return response
        wanted_s = retry_after_s(response.headers.get("Retry-After", b"").decode("latin-1"))
        if wanted_s is not None and wanted_s > self._fetch.retry_after_s:
            self._left_alone[origin] = FetchOutcome(
                "server-error",
                f"{origin} answered {response.status} and asked to wait {wanted_s:g} s, longer "
                f"than retry_after_s = {self._fetch.retry_after_s:g}: left alone for this run.",
            )
            raise RefusedError(self._left_alone[origin])
        return self._again(request, wanted_s) or response

    def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """Repeat a request whose connection failed, unless the host does not exist."""
        if not isinstance(exception, RETRIED_ERRORS) or head_too_long(exception):
            return None
        if isinstance(exception, UNREACHABLE) and self._given_up(request, exception):
            return None
        return self._again(request, None)

    def _given_up(self, request: Request, exception: Exception) -> bool:
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

    def _log_slot(self, request: Request) -> None:
        """Log once how an origin is treated, as its slot really is."""
        origin = request.meta["download_slot"]
        slot = self._crawler.engine.downloader.slots.get(origin)
        # With the answer to robots.txt itself it is too early: its rules may slow the slot down.
        if slot is None or origin in self._logged or request.meta.get(IS_RULES):
            return
        self._logged.add(origin)
        throttle = "off" if request.meta["autothrottle_dont_adjust_delay"] else "on"
        how = "%s: %d at once, delay %.2f s, AutoThrottle %s"
        log.info(how, origin, slot.concurrency, slot.delay, throttle)

    def _again(self, request: Request, wanted_s: float | None) -> Request | None:
        times = request.meta.get("retry_times", 0)
        if times >= self._fetch.retries:
            return None
        policy = self._fetch.policy(origin_of(request.url))
        self._pause(request, policy.delay_s * 2**times if wanted_s is None else wanted_s)
        log.info("Trying %s again (%d)", request.url, times + 1)
        return request.replace(
            meta={**request.meta, "retry_times": times + 1},
            dont_filter=True,
            priority=request.priority - 1,
        )

    def _pause(self, request: Request, wait_s: float) -> None:
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
