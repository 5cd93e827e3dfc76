"""Openverse, the search engine for openly licensed media (API version 1).

Facts from its source code and API reference (WordPress/openverse, `api/`): answers hold
result_count, page_count, page_size, page and results; without a key at most 20 results a page,
20 requests a minute and 200 a day, and the terms forbid to scrape the catalogue.
"""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from skindx.data.ledger import LedgerRow
from skindx.data.sources.api import ApiSource, Endpoint, number, text
from skindx.data.sources.columns import described
from skindx.data.sources.image_source import Page

_NAMES = {"cc0": "CC0", "pdm": "Public Domain Mark"}
Licence = Literal["by", "by-sa", "by-nc", "by-nc-sa", "by-nd", "by-nc-nd", "cc0", "pdm"]


class OpenverseSource(ApiSource):
    """Images that Openverse finds; they are fetched from the sites that hold them."""

    kind: Literal["openverse"]
    api: Endpoint = "https://api.openverse.org/v1/images/"
    licences: tuple[Licence, ...] = Field(("by", "by-sa", "cc0", "pdm"), min_length=1)
    page_size: int = Field(20, ge=1, le=20)
    delay_s: float = Field(default=4.0, ge=1, le=600)

    def parameters(self, query: str) -> dict[str, str | int]:
        licences = ",".join(self.licences)
        return {"q": query, "license": licences, "page_size": self.page_size, "page": 1}

    def images(
        self, result: dict[str, Any], label: str, content: dict[str, Any]
    ) -> Iterator[LedgerRow]:
        """Yield one result's row."""
        yield self.row(
            text(result, "url"),
            label,
            f"openverse:{text(result, 'id')}",
            page_url=text(result, "foreign_landing_url"),
            licence=licence(text(result, "license"), text(result, "license_version")),
            creator=text(result, "creator"),
            attribution=text(result, "attribution"),
            caption=described(text(result, "title")),
        )

    def following(self, page: Page, content: dict[str, Any]) -> str:
        """Return the same search's next page."""
        here = number(content, "page")
        if here >= number(content, "page_count"):
            return ""
        first = page.start or page.url
        return f"{first.rpartition('&page=')[0]}&page={here + 1}"


def licence(code: str, version: str) -> str:
    """Write a licence as people do: by-sa and 2.0 become CC BY-SA 2.0."""
    if not code:
        return ""
    return f"{_NAMES.get(code, f'CC {code.upper()}')} {version}".strip()
