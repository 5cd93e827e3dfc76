"""Base of image-search APIs: searches by label, JSON answers, few requests to each."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from pydantic import BeforeValidator, Field

from skindx.data.ledger import LedgerRow
from skindx.data.sources.columns import LONGEST
from skindx.data.sources.image_source import Page, UnreadablePageError, WebSource

if TYPE_CHECKING:
    from scrapy.http import Response

Queries = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1),
]
Endpoint = Annotated[str, Field(pattern=r"^https?://[^/\s?#@]+/[^\s?#]*$")]


class ApiSource(WebSource):
    """A documented search API: `searches` maps each label to one or more queries.

    The defaults ask for little. An API is there for searching, not for copying a catalogue; the
    terms of the one you use say how much it gives.
    """

    api: Endpoint
    searches: dict[Annotated[str, Field(min_length=1)], Queries] = Field(min_length=1)
    max_pictures: int | None = Field(default=100, ge=1, le=10**12)
    max_pages: int | None = Field(default=100, ge=1, le=10**9)
    delay_s: float = Field(default=1.0, ge=1, le=600)
    """Delay between two requests to the API, unless `fetch.origins` names it."""

    @property
    def name(self) -> str:
        """The kind of API; where it is asked is nothing that a dataset must know."""
        return str(getattr(self, "kind"))  # noqa: B009 (every kind has one, the base has not)

    @property
    def endpoint(self) -> str:
        """The URL below which the API answers."""
        return self.api

    @property
    def request_delay_s(self) -> float:
        """Seconds between two requests to the API."""
        return self.delay_s

    def check(self) -> tuple[str]:
        return (self.api,)

    def begin(self) -> Iterator[Page]:
        """Ask for the first page of every search."""
        for label, queries in self.searches.items():
            for query in queries:
                yield Page(f"{self.api}?{urlencode(self.parameters(query))}", label)

    @abstractmethod
    def parameters(self, query: str) -> dict[str, str | int]:
        """Return the parameters of a search's first page."""

    def read(self, page: Page, answer: "Response") -> Iterator[Page | LedgerRow]:
        """Read one answer; a first page without any result is reported as a page that failed."""
        content = _content(answer)
        results = self.results(content)
        if not results and not page.start:
            raise UnreadablePageError("nothing-found", "The API finds no image by this search.")
        for result in results:
            yield from self.images(result, page.label, content)
        following = self.following(page, content)
        if following:
            yield Page(following, page.label, start=page.start or page.url)

    def results(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the results of an answer. Raises UnreadablePageError."""
        return objects(content.get("results"), "results")

    @abstractmethod
    def images(
        self, result: dict[str, Any], label: str, content: dict[str, Any]
    ) -> Iterator[LedgerRow]:
        """Yield the row of one result, or none if a later answer holds it."""

    @abstractmethod
    def following(self, page: Page, content: dict[str, Any]) -> str:
        """Return the URL of the next page, "" after the last. Raises UnreadablePageError."""

    def barren(self, labels: int, failures: Sequence[str]) -> str:
        """Say that no search found anything, and what the first one answered."""
        first = f" First problem: {failures[0]}" if failures else ""
        return (
            f"{self.name}: none of the searches for {labels} labels names an image; look at "
            f"`searches` and at whether {self.api} answers.{first}"
        )


def _content(answer: "Response") -> dict[str, Any]:
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise UnreadablePageError(
            "unreadable-page", f"The answer is no JSON; it begins with {answer.body[:40]!r}."
        ) from None
    if not isinstance(content, dict):
        raise UnreadablePageError("unreadable-page", "The answer is no JSON object.")
    return content


def objects(value: object, name: str) -> list[dict[str, Any]]:
    """Return a JSON list of objects. Raises UnreadablePageError for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnreadablePageError("unreadable-page", f"The answer has no list of {name}.")
    return value


def text(value: object, *path: str) -> str:
    """Return the text or number at a path of keys, "" where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    usable = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value).strip()[:LONGEST] if usable else ""


def number(value: object, *path: str) -> int:
    """Return the whole number at a path of keys, 0 where there is none of at most 9 digits."""
    digits = text(value, *path)
    return int(digits) if digits.isdecimal() and len(digits) < 10 else 0
