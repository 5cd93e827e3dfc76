"""robots.txt (RFC 9309), without the race: no request of a host starts before its rules are known.

Scrapy's own middleware lets all but the first of the requests through that wait for the same
robots.txt, which is how disallowed pages get fetched.
"""

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy.http import Request
from scrapy.http.request import NO_CALLBACK

from skindx.data.fetch.outcome import REFUSALS, Outcome, RefusedError, of_answer, of_error
from skindx.data.fetch.settings import AGENT, FetchSettings, origin_of
from skindx.data.sources.urls import carried

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

log = logging.getLogger(__name__)

_NO_TRAINING = re.compile(
    r"^[ \t]*(content-signal[ \t]*:.*\bai-train[ \t]*=[ \t]*no\b"
    r"|content-usage[ \t]*:.*\btrain-ai[ \t]*=[ \t]*n\b)",
    re.IGNORECASE | re.MULTILINE,
)
"""What a robots.txt says about machine learning: contentsignals.org, and the IETF's AI preferences.

A refusal counts for all robots and paths, as with noai."""
_MAX_BYTES = 512_000  # RFC 9309 section 2.5 asks for at least 500 KiB
ENDPOINT = "skindx_endpoint"
"""Request meta: the official API below whose URL robots.txt is not asked (WebSource.endpoint)."""
IS_RULES = "skindx_robots_txt"
"""Request meta: this is a request for robots.txt itself."""
CRAWL_DELAY = "skindx_crawl_delay_s"
"""Request meta: the seconds that the origin's robots.txt asks for between two requests, capped."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """Permissions of one origin: a parsed robots.txt, or the reason why nothing may be fetched."""

    parser: Any = None
    refusal: Outcome | None = None
    delay_s: float = 0.0

    def disallows(self, url: str) -> Outcome | None:
        """Return the refusal of one URL by rules that were read, if they refuse it."""
        if self.parser is None or self.parser.can_fetch(url, AGENT):
            return None
        return Outcome("robots", f"{origin_of(url)}/robots.txt disallows {url}.")


class RobotsGuard:
    """Downloader middleware that holds each request until its origin's robots.txt has answered."""

    def __init__(self, crawler: "Crawler") -> None:
        self._crawler = crawler
        self._fetch: FetchSettings = crawler.settings["SKINDX_FETCH"]
        self._rules: dict[str, asyncio.Future[_Rules]] = {}

    @classmethod
    def from_crawler(cls, crawler: "Crawler") -> "RobotsGuard":
        """Build the middleware; called by Scrapy."""
        return cls(crawler)

    async def process_request(self, request: Request) -> None:
        """Let an allowed request pass, also each hop of a redirect. Raises RefusedError."""
        # Each hop of a redirect comes here, with the meta of the origin before it; one that leaves
        # an API is a page like any other.
        request.meta[CRAWL_DELAY] = 0.0
        endpoint = request.meta.get(ENDPOINT)
        if request.meta.get(IS_RULES) or (endpoint and request.url.startswith(endpoint)):
            return
        try:
            origin = origin_of(request.url)
        except ValueError as error:
            raise RefusedError(Outcome("bad-url", f"{error}.")) from None
        rules = await self._rules_of(origin)
        if refusal := rules.refusal or rules.disallows(request.url):
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
        refusal = rules.refusal or rules.disallows(address)
        if refusal and refusal.status in REFUSALS:
            raise RefusedError(refusal)

    async def _rules_of(self, origin: str) -> _Rules:
        if origin not in self._rules:
            self._rules[origin] = asyncio.ensure_future(self._ask(origin))
        # The shield keeps one cancelled request from cancelling the rules of all the others.
        return await asyncio.shield(self._rules[origin])

    async def _ask(self, origin: str) -> _Rules:
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
            return _Rules(refusal=_unreachable(url, problem))
        refused = of_answer(response)
        if refused is None:
            # With a byte order mark Protego would not know the first line, and allow everything.
            text = response.body.decode("utf-8-sig", "replace")
            if said := _NO_TRAINING.search(text):
                forbids = f"{url} forbids training ({' '.join(said[0].split())[:100]})."
                return _Rules(refusal=Outcome("opt-out", forbids))
            parser = Protego.parse(text)
            return _Rules(parser, delay_s=self._delay_s(parser, url))
        # Section 2.3.1.3: a robots.txt that is not there forbids nothing.
        if refused.status in {"dead-link", "empty"}:
            return _Rules(Protego.parse(""))
        return _Rules(refusal=_unreachable(url, refused))

    def _delay_s(self, parser: Any, url: str) -> float:
        """Return the Crawl-delay (no part of RFC 9309, but widely meant), capped and reported."""
        asked_s = parser.crawl_delay(AGENT) or 0.0
        if not asked_s > 0:
            return 0.0
        kept_s: float = min(asked_s, self._fetch.crawl_delay_s)
        capped = f", of which crawl_delay_s keeps {kept_s:g} s" if kept_s < asked_s else ""
        log.info("%s asks for %g s between requests%s", url, asked_s, capped)
        return kept_s


def _unreachable(url: str, problem: Outcome) -> Outcome:
    """Section 2.3.1.4: rules that cannot be read forbid everything."""
    if problem.status in {"unreachable", "private-address"}:
        return problem  # there is no host to obey, and the image has the same reason
    return Outcome(
        "robots",
        f"{url} could not be read, so nothing of this host is fetched (RFC 9309). {problem.detail}",
        unread=True,
    )
