"""The Scrapy settings that follow from the settings of a crawl."""

from typing import Any

from skindx.data.fetch.settings import FetchSettings


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
        "TWISTED_DNS_RESOLVER": "skindx.data.fetch.address.AddressGuard",
        "DOWNLOADER": "skindx.data.fetch.downloader.ExactDownloader",
        "DOWNLOAD_HANDLERS": {
            "http": "skindx.data.fetch.downloader.KeepAliveHandler",
            "https": "skindx.data.fetch.downloader.KeepAliveHandler",
            **dict.fromkeys(("data", "file", "ftp", "s3")),
        },
        "DOWNLOADER_MIDDLEWARES": {
            "skindx.data.fetch.partition.PartitionGuard": 50,
            "skindx.data.fetch.robots.RobotsGuard": 100,
            "skindx.data.fetch.politeness.Politeness": 550,
            "skindx.data.fetch.decoding.Decoder": 590,
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
        "HTTPPROXY_ENABLED": False,
        "URLLENGTH_LIMIT": 0,
        "HTTPERROR_ALLOW_ALL": True,
        "LOG_LEVEL": "INFO",
    }
