"""How the crawl behaves towards other servers: our settings, and Scrapy's that follow from them."""

import re
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from skindx import __version__
from skindx.core.settings_base import Settings

AGENT = "skindx"
"""The name that robots.txt rules are matched against."""

_OLD_MAX_PIXELS = 50_000_000


def origin_of(url: str) -> str:
    """Return a URL's scheme://host:port, the port always written. Raises ValueError if it has none.

    Only http and https have an origin here; a URL with a user name in it has none either.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"{url[:200]!r} is no plain http(s) URL")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{host_port(parts.hostname, port)}"


def host_port(host: str, port: int) -> str:
    """Write host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _exact_origin(text: str) -> str:
    try:
        exact = origin_of(text)
    except ValueError:
        exact = ""
    if text != exact:
        raise ValueError("write the origin as scheme://host:port, such as http://127.0.0.1:8000")
    return text


def _exact_host_port(text: str) -> str:
    if not re.fullmatch(r"([^\s:/@\[\]]+|\[[0-9a-fA-F:.]+\]):[1-9]\d{0,4}", text):
        raise ValueError("write host:port, as in 127.0.0.1:8000 or [::1]:8000")
    return text.lower()


class OriginPolicy(Settings):
    """How fast one origin may be crawled; meant for your own servers."""

    concurrency: int = Field(8, ge=1, le=64)
    delay_s: float = Field(0.0, ge=0, le=600)


class FetchSettings(Settings):
    """Limits of the crawl; robots.txt is always obeyed.

    Every host gets the polite default: few requests at once, a delay of at least a second that
    AutoThrottle lengthens when the server is slow. Only an origin that is named in `origins`,
    exactly, is treated otherwise.
    """

    removed_from: ClassVar[str] = "recipe fetch."

    contact: str = Field("", max_length=200, pattern=r"^[\x20-\x7e]*$")
    """A URL or mail address where a site's owner reaches you; it stands in the user agent."""
    concurrency: int = Field(1, ge=1, le=2)
    """Most requests at the same time to one origin (scheme, host and port)."""
    delay_s: float = Field(1.0, ge=1, le=600)
    """Least time between the starts of two requests."""
    origins: dict[Annotated[str, AfterValidator(_exact_origin)], OriginPolicy] = Field({})
    allow_private: tuple[Annotated[str, AfterValidator(_exact_host_port)], ...] = ()
    """host:port pairs, as in URLs, that may have a loopback or private address."""
    timeout_s: float = Field(30.0, gt=0, le=600)
    """Timeout of a whole request, including connection and body."""
    retries: int = Field(2, ge=0, le=10)
    retry_after_s: float = Field(300.0, ge=0, le=86_400)
    """Longest wait that a server may request; a server that wants more is skipped in this run."""
    crawl_delay_s: float = Field(30.0, ge=1, le=600)
    """Upper bound of the `Crawl-delay` of a robots.txt."""
    max_bytes: int = Field(20_000_000, ge=1, le=10**15)
    """Largest image; a longer download is cut off and never stored."""
    max_pages: int = Field(10_000, ge=1, le=10**9)
    """Most index and category pages of one source."""

    @model_validator(mode="before")
    @classmethod
    def _read_older(cls, raw: Any) -> Any:
        """Read recipes that older versions saved: with a cap that does nothing."""
        if not isinstance(raw, dict):
            return raw
        if raw.get("max_pixels", _OLD_MAX_PIXELS) != _OLD_MAX_PIXELS:
            raise ValueError("`fetch` has no limit on pixels; set screen.max_pixels instead")
        return {key: raw[key] for key in raw if key != "max_pixels"}

    @property
    def user_agent(self) -> str:
        """Say truthfully who asks."""
        who = f"+{self.contact}" if self.contact else "builds datasets of skin pictures; no contact"
        return f"{AGENT}/{__version__} ({who})"

    @property
    def warning(self) -> str:
        """One sentence if site owners cannot reach the user, else ""."""
        if self.contact:
            return ""
        return "No contact is set: set fetch.contact to a URL or mail address for site owners."

    def policy(self, origin: str) -> OriginPolicy:
        """Return the policy of an origin, the polite default if it is not named."""
        default = OriginPolicy(concurrency=self.concurrency, delay_s=self.delay_s)
        return self.origins.get(origin, default)


def scrapy_settings(fetch: FetchSettings) -> dict[str, Any]:
    """Return the settings of the crawl process; every Scrapy default that we do not want is off."""
    base = "scrapy.downloadermiddlewares"
    return {
        "SKINDX_FETCH": fetch,
        "USER_AGENT": fetch.user_agent,
        "DEFAULT_REQUEST_HEADERS": {"Accept": "*/*", "Accept-Encoding": "identity"},
        # The polite default for every slot; a named origin has a slot of its own.
        "CONCURRENT_REQUESTS_PER_DOMAIN": fetch.concurrency,
        "DOWNLOAD_DELAY": fetch.delay_s,
        # Jitter would only disguise a robot; we say that we are one and keep the whole delay.
        "DOWNLOAD_DELAY_JITTER": 0,
        "AUTOTHROTTLE_ENABLED": True,
        "AUTOTHROTTLE_START_DELAY": fetch.delay_s,
        "AUTOTHROTTLE_TARGET_CONCURRENCY": 1.0,
        "DOWNLOAD_SLOTS": {
            origin: {"concurrency": policy.concurrency, "delay": policy.delay_s}
            for origin, policy in fetch.origins.items()
        },
        "CONCURRENT_REQUESTS": 16 + sum(policy.concurrency for policy in fetch.origins.values()),
        "DOWNLOAD_TIMEOUT": fetch.timeout_s,
        "DOWNLOAD_MAXSIZE": fetch.max_bytes,
        "DOWNLOAD_WARNSIZE": 0,
        "DOWNLOAD_VERIFY_CERTIFICATES": True,
        "REDIRECT_MAX_TIMES": 5,
        "TWISTED_DNS_RESOLVER": "skindx.data.crawl.transport.AddressGuard",
        "DOWNLOADER": "skindx.data.crawl.transport.ExactDownloader",
        "DOWNLOAD_HANDLERS": {
            "http": "skindx.data.crawl.transport.KeepAliveHandler",
            "https": "skindx.data.crawl.transport.KeepAliveHandler",
            **dict.fromkeys(("data", "file", "ftp", "s3")),
        },
        "DOWNLOADER_MIDDLEWARES": {
            "skindx.data.crawl.middleware.RobotsGuard": 100,
            "skindx.data.crawl.middleware.Politeness": 550,
            "skindx.data.crawl.transport.Decoder": 590,
            f"{base}.robotstxt.RobotsTxtMiddleware": None,
            f"{base}.httpauth.HttpAuthMiddleware": None,
            f"{base}.retry.RetryMiddleware": None,
            f"{base}.redirect.MetaRefreshMiddleware": None,
            f"{base}.httpcompression.HttpCompressionMiddleware": None,
            f"{base}.cookies.CookiesMiddleware": None,
            f"{base}.httpproxy.HttpProxyMiddleware": None,
            f"{base}.httpcache.HttpCacheMiddleware": None,
        },
        # Not imported either: the first two open ports, and bring another HTTP library along.
        "EXTENSIONS": dict.fromkeys(
            f"scrapy.extensions.{name}"
            for name in (
                "remote_control.RemoteControl",
                "telnet.TelnetConsole",
                "memdebug.MemoryDebugger",
                "memusage.MemoryUsage",
                "feedexport.FeedExporter",
                "spiderstate.SpiderState",
            )
        ),
        # Each of these opens a port, writes files or drops requests without a word.
        "TELNETCONSOLE_ENABLED": False,
        "REMOTE_CONTROL_ENABLED": False,
        "MEMUSAGE_ENABLED": False,
        "COOKIES_ENABLED": False,
        # A path or a query, which may hold a key of an API, is nobody else's business.
        "REFERRER_POLICY": "strict-origin",
        "HTTPPROXY_ENABLED": False,
        "URLLENGTH_LIMIT": 0,
        "HTTPERROR_ALLOW_ALL": True,
        "LOG_LEVEL": "INFO",
    }
