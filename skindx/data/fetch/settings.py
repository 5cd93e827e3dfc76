"""How the crawl behaves."""

from skindx.config import Settings


class FetchSettings(Settings):
    """How politely to fetch."""
