"""Base of image-search APIs: searches by label, JSON answers, few requests to each."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlencode

from pydantic import BeforeValidator, Field

from skindx.core.text import counted, printable
from skindx.data.ledger import LedgerRow
from skindx.data.sources.columns import described, plain_text
from skindx.data.sources.image_source import Page, SearchCount, UnreadablePageError, WebSource
from skindx.data.tables.cells import LONGEST

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
                for parameters in self.requests(query):
                    yield Page(f"{self.api}?{urlencode(parameters)}", label)

    def requests(self, query: str) -> Iterator[dict[str, str | int]]:
        """Yield the parameters of the first page of each search that a query is."""
        yield self.parameters(query)

    @abstractmethod
    def parameters(self, query: str) -> dict[str, str | int]:
        """Return the parameters of a search's first page."""

    def read(self, page: Page, answer: "Response") -> Iterator[Page | LedgerRow]:
        """Read one answer; a first page without any result is reported as a page that failed."""
        content = _content(answer)
        results = self.results(content)
        if not results and not page.start and not self.following(page, content):
            raise UnreadablePageError("nothing-found", "The search of this API finds no image.")
        for result in results:
            yield from self.images(result, page.label, content)
        following = self.following(page, content)
        if following:
            yield Page(following, page.label, start=page.start or page.url)

    def promise(self, answer: "Response") -> SearchCount | None:
        try:
            return self.promised(_content(answer))
        except UnreadablePageError:
            return None

    def promised(self, content: dict[str, Any]) -> SearchCount | None:
        """Return how many results a first answer promises, None where it does not say."""
        return None

    def problem(self, answer: "Response") -> str:
        """Return the API's own words about a failure: `detail`, `message` or `error.info`."""
        try:
            content = _content(answer)
        except UnreadablePageError:
            return ""
        places = (("detail",), ("message",), ("error",), ("error", "info"))
        words = (text(content, *place) for place in places)
        return printable(next(filter(None, words), ""))[:200]

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
        found = f"{self.name}: no search found an image, for any of {counted(labels, 'label')}"
        if failures:
            return (
                f"{found}. First problem: {failures[0].rstrip('. ')}. Correct `searches` in the "
                "recipe, or try again later if the server did not answer."
            )
        return f"{found}; correct `searches` in the recipe."


def _content(answer: "Response") -> dict[str, Any]:
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise UnreadablePageError(
            "unreadable-page",
            f"The answer of the server is not JSON; it begins with {answer.body[:40]!r}.",
        ) from None
    if not isinstance(content, dict):
        raise UnreadablePageError(
            "unreadable-page", "The answer of the server is not a JSON object."
        )
    return content


def objects(value: object, name: str) -> list[dict[str, Any]]:
    """Return a JSON list of objects. Raises UnreadablePageError for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnreadablePageError(
            "unreadable-page", f"The answer of the server has no list of {name}."
        )
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


_BUSY = ("maxlag", "ratelimited", "readonly", "internal_api_error")
"""How the codes of MediaWiki's errors begin that say nothing of the request itself."""


def _is_passing(content: dict[str, Any]) -> bool:
    return text(content, "error", "code").startswith(_BUSY)


_PICTURES = ("image/jpeg", "image/png", "image/webp", "image/tiff")
_META = ("LicenseShortName", "Artist", "Credit", "Attribution")


class WikimediaSource(ApiSource):
    """Images of Commons: a query that begins with "Category:" lists it, another one searches.

    Answers of both format versions are read: a list of pages, or (1) pages by their id. Errors come
    with status 200; of those that pass (_BUSY) the API says when to come again.
    """

    kind: Literal["wikimedia"]
    api: Endpoint = "https://commons.wikimedia.org/w/api.php"
    page_size: int = Field(50, ge=1, le=500)

    needs_contact: ClassVar[bool] = True

    def is_busy(self, answer: "Response") -> bool:
        """Tell whether the API is overloaded, or was asked too often."""
        try:
            return b'"error"' in answer.body and _is_passing(_content(answer))
        except UnreadablePageError:
            return False

    def parameters(self, query: str) -> dict[str, str | int]:
        """Return the parameters of a listing or a search."""
        generator: dict[str, str | int]
        if query.startswith("Category:"):
            generator = {"generator": "categorymembers", "gcmtitle": query, "gcmtype": "file"}
            generator |= {"gcmlimit": self.page_size}
        else:
            generator = {"generator": "search", "gsrsearch": query, "gsrnamespace": 6}
            generator |= {"gsrlimit": self.page_size}
        return {
            "action": "query",
            "format": "json",
            "formatversion": 2,
            **generator,
            "prop": "imageinfo",
            "iiprop": "url|mime|size|extmetadata",
            "iiextmetadatafilter": "|".join(_META),
            "iiextmetadatalanguage": "en",
        }

    def results(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the files of an answer, in the order of the search."""
        if "error" in content:
            words = f"{text(content, 'error', 'code')}: {text(content, 'error', 'info')}"
            detail = f"The API answered with an error ({printable(words)[:200]})."
            status = "server-error" if _is_passing(content) else "api-error"
            raise UnreadablePageError(status, detail)
        query = content.get("query")
        # Without any result there is no `query` at all.
        pages = query.get("pages") if isinstance(query, dict) else []
        found = objects(list(pages.values()) if isinstance(pages, dict) else pages, "pages")
        return sorted(found, key=lambda page: number(page, "index"))

    def images(
        self, result: dict[str, Any], label: str, content: dict[str, Any]
    ) -> Iterator[LedgerRow]:
        """Yield one file's row; what is no image by its type is not fetched."""
        infos = result.get("imageinfo")
        info = infos[0] if isinstance(infos, list) and infos else None
        if info is None and "batchcomplete" not in content:
            return  # a later answer of this batch has it
        row = self.row(
            text(info, "url"),
            label,
            f"wikimedia:{text(result, 'title')}",
            page_url=text(info, "descriptionurl"),
            licence=_meta(info, "LicenseShortName"),
            creator=_meta(info, "Artist"),
            attribution=_meta(info, "Attribution") or _meta(info, "Credit"),
            caption=described(text(result, "title").removeprefix("File:").rpartition(".")[0]),
        )
        mime = text(info, "mime")
        if row.status == "no-url" and "missing" in result:
            yield replace(row, status="dead-link", detail="Commons says that the file is missing.")
        elif mime and mime not in _PICTURES:
            detail = f"Commons says that it is {mime}."
            status = "unsupported-format" if mime.startswith("image/") else "not-a-picture"
            yield replace(row, status=status, detail=detail)
        else:
            yield row

    def following(self, page: Page, content: dict[str, Any]) -> str:
        """Return the first request with the parameters of `continue` added."""
        more = content.get("continue")
        if not isinstance(more, dict) or not more:
            return ""
        return f"{page.start or page.url}&{urlencode({key: text(more, key) for key in more})}"


def _meta(info: object, field: str) -> str:
    """Return a field of extmetadata, which is HTML, as plain text."""
    return " ".join(plain_text(text(info, "extmetadata", field, "value")).split())


_MOST_RESULTS = 240
_NAMES = {"cc0": "CC0", "pdm": "Public Domain Mark"}
Licence = Literal["by", "by-sa", "by-nc", "by-nc-sa", "by-nd", "by-nc-nd", "cc0", "pdm"]


class OpenverseSource(ApiSource):
    """Images that Openverse finds; they are fetched from the sites that hold them.

    One search gives at most 240 results, on pages of at most 20 without a key. Several queries of a
    label, and several `providers`, reach more; an image that several find is one.
    """

    kind: Literal["openverse"]
    api: Endpoint = "https://api.openverse.org/v1/images/"
    licences: tuple[Licence, ...] = Field(("by", "by-sa", "cc0", "pdm"), min_length=1)
    page_size: int = Field(20, ge=1, le=20)
    delay_s: float = Field(default=4.0, ge=1, le=600)
    sensitive: bool = Field(False, exclude_if=lambda sensitive: not sensitive)
    """Ask for results too that Openverse hides as sensitive, as it does with many of skin."""
    providers: tuple[Annotated[str, Field(pattern=r"^[\w-]+$")], ...] = Field(
        (), exclude_if=lambda providers: not providers
    )
    """Collections that each query asks one by one, such as flickr and wikimedia, so that each gives
    240 results; (): one search over all."""

    def parameters(self, query: str) -> dict[str, str | int]:
        # Any value of `mature`, also "false", would ask for sensitive results.
        asked = {"unstable__include_sensitive_results": "true"} if self.sensitive else {}
        licences = ",".join(self.licences)
        return {"q": query, "license": licences, **asked, "page_size": self.page_size, "page": 1}

    def requests(self, query: str) -> Iterator[dict[str, str | int]]:
        for provider in self.providers or ("",):
            yield {**({"source": provider} if provider else {}), **self.parameters(query)}

    def promised(self, content: dict[str, Any]) -> SearchCount:
        """Return `result_count`, which is 240 for a search that finds more."""
        results = number(content, "result_count")
        given = min(_MOST_RESULTS, number(content, "page_count") * number(content, "page_size"))
        limit = f"Openverse gives no more than {given} results of one search: ask with more exact "
        limit += "words, or name `providers` to ask one by one."
        return SearchCount(results, limit if results >= _MOST_RESULTS or results > given else "")

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
        if here >= number(content, "page_count") or here * self.page_size >= _MOST_RESULTS:
            return ""
        first = page.start or page.url
        return f"{first.rpartition('&page=')[0]}&page={here + 1}"


def licence(code: str, version: str) -> str:
    """Write a licence as people do: by-sa and 2.0 become CC BY-SA 2.0."""
    if not code:
        return ""
    return f"{_NAMES.get(code, f'CC {code.upper()}')} {version}".strip()
