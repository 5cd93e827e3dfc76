"""Interface of a source: images on this machine, or web pages that lead to images.

A new source is one file with one class of these, and one line in source_kinds.py, or an entry point
of the group `skindx.sources` in another distribution.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self
from urllib.parse import urldefrag, urlsplit

from pydantic import Field

from skindx.core.secret_hosts import hosts_in
from skindx.core.settings_base import Settings
from skindx.data.layout import store_bytes
from skindx.data.ledger import LedgerRow, now
from skindx.data.manifest import Split
from skindx.data.origin import Modality
from skindx.imaging.image_formats import image_suffix

if TYPE_CHECKING:
    from scrapy.http import HtmlResponse, Response

    from skindx.taxonomy import Taxonomy


NO_LABEL = ("no-label", "The source says nothing about what it shows.")
"""Status and detail of an image without a label."""


@dataclass(frozen=True, slots=True)
class SourcePreview:
    """What a source knows before anything is copied or fetched."""

    labels: Sequence[str]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A page that a source wants to read; what it shows goes under `label`."""

    url: str
    label: str = ""
    start: str = ""
    """The first page of the series that this one continues; "" if it is that page itself."""


@dataclass(frozen=True, slots=True)
class SearchCount:
    """How many results the first answer to a search says there are."""

    results: int
    limit: str = ""
    """Why there may be more than a source ever gives, as a sentence; "": nothing is hidden."""


Choice = tuple[LedgerRow, ...]
"""Rows of the same image under several addresses, the largest version first; only one is needed."""


class UnreadablePageError(Exception):
    """An answer came, but it is not what the source's documentation promises."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class SourceSettings(Settings):
    """What is known of all images of a source."""

    modality: Modality = Field("", exclude_if=lambda modality: not modality)
    """Dermoscopic: through a dermatoscope; clinical: by a camera or a phone; empty: not known."""
    synthetic: bool = Field(False, exclude_if=lambda synthetic: not synthetic)
    """Synthetic images: a bundle that learned from them says so in every answer."""
    split: Split | Literal[""] = Field("", exclude_if=lambda split: not split)
    """The split of all images of this source, where its makers give one; "": the build chooses."""

    knows_labels: ClassVar[bool] = False
    """Whether `preview` gives all labels: bad ones are refused before anything is copied."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How the ledger and the manifest call this source, the same in every run."""

    @property
    def folder(self) -> Path | None:
        """The folder whose whole content is read, in which no dataset may be built."""
        return None

    @abstractmethod
    def preview(self) -> SourcePreview:
        """Return the labels that are known without copying or asking anything. Raises UserError."""

    def hosts(self) -> Collection[str]:
        """Return the hosts that get values of these settings."""
        return ()

    def stated_modality(self) -> Modality:
        """Return the modality that the settings or the source's table state."""
        return self.modality

    def for_taxonomy(self, taxonomy: "Taxonomy | None") -> Self:
        """Return the source for a recipe's classes; most sources give their labels in any case."""
        return self


class LocalSource(SourceSettings):
    """Images that lie on this machine."""

    @abstractmethod
    def gather(self, dataset: Path) -> list[LedgerRow]:
        """Copy the images into the store of `dataset`; return one row an image found.

        Raises UserError for input that no dataset can come from.
        """

    def gather_slowly(self, dataset: Path, on_image: Callable[[], None]) -> list[LedgerRow]:
        """Gather, and call `on_image` at each image if that takes long."""
        return self.gather(dataset)

    def stored(
        self, dataset: Path, url: str, label: str, data: bytes, *, status: str, **known: Any
    ) -> LedgerRow:
        """Return an image's row; its bytes go into the store where the status is "stored"."""
        sha256 = path = ""
        if status == "stored":
            sha256, path = store_bytes(dataset, data, image_suffix(data[:16]) or "")
        return LedgerRow(
            url,
            label,
            status,
            sha256=sha256,
            path=path,
            size_bytes=len(data) if path else 0,
            retrieved=now(),
            source=self.name,
            **{"split": self.split, **known},
        )


class WebSource(SourceSettings):
    """Images on the web; the crawl asks for its pages and images and keeps all the rules."""

    disabled: str = ""
    """Why this source may not be fetched without permission; the build then refuses it."""
    permission: str = ""
    """Permission for a disabled source, and its date: "A. Editor by letter, 2026-02-03"."""
    max_pictures: int | None = Field(default=None, ge=1, le=10**12)
    """Most images of one label: the first that the source names, fetched or not."""
    max_pages: int | None = Field(default=None, ge=1, le=10**9)
    """Most pages of the whole source; null: `fetch.max_pages`."""

    html: ClassVar[bool] = False
    """Whether pages are HTML; such a page may forbid machine learning in its head."""
    needs_contact: ClassVar[bool] = False
    """Whether the site refuses a user agent without a contact."""

    @property
    def endpoint(self) -> str:
        """The URL below which an official API answers, "" for a source that has none.

        The terms under which an API is published permit its use by programs. robots.txt applies
        to crawlers of pages, and the one of Wikimedia Commons disallows the very path of its
        API; so it is not asked for URLs below this one, nor for any other reason.
        """
        return ""

    @property
    def request_delay_s(self) -> float | None:
        """Seconds between two requests to the endpoint, None for the delay of any other host."""
        return None

    def hosts(self) -> Collection[str]:
        return set(hosts_in(self.model_dump(mode="json")))

    @abstractmethod
    def check(self) -> Collection[str]:
        """Return an address of each site that is asked first.

        Raises UserError for settings that cannot work; needs the `data` extra.
        """

    @abstractmethod
    def begin(self) -> Iterator[Page | LedgerRow]:
        """Yield what is known without asking anybody."""

    def preview(self) -> SourcePreview:
        """Return the labels of the pages and images that the crawl begins with."""
        return SourcePreview([item.label for item in self.begin()])

    def read(self, page: Page, answer: "Response") -> Iterator[Page | LedgerRow | Choice]:
        """Yield what an answer leads to; a row with a status already is not fetched.

        Of a choice the next address is fetched only where the one before gives no image.

        Raises UnreadablePageError. `answer` is an HtmlResponse for a source of HTML pages.
        """
        raise UnreadablePageError(
            "no-pages", f"the source {self.name} has no pages, so {page.url} cannot be read"
        )

    def promise(self, answer: "Response") -> SearchCount | None:
        """Return what the first answer to a search says of all its results, None for nothing."""
        return None

    def problem(self, answer: "Response") -> str:
        """Return what an answer says of its failure, in its own words; "" where it has none."""
        return ""

    def is_busy(self, answer: "Response") -> bool:
        """Tell whether an answer only says to come again later, though its status is 200."""
        return False

    def address(self, url: str) -> str:
        """Return where an image is fetched from; its row keeps the URL that the source names."""
        return url

    @abstractmethod
    def barren(self, labels: int, failures: Sequence[str]) -> str:
        """Say in one sentence why nothing was found, and what to do.

        `labels` of the source were looked into, `failures` are the pages that could not be read.
        """

    def nothing_shown(self) -> str:
        """Say of a page, or a series of them, that it was read and shows no image."""
        return "It was read and names no image."

    def row(self, address: str, label: str, identity: str = "", **known: Any) -> LedgerRow:
        """Return an image's row: to be fetched, or with the reason why it cannot be.

        `identity` names an image that has no address.
        """
        url = plain_url(address) if address else None
        status = detail = ""
        if not label:
            status, detail = NO_LABEL
        elif not address:
            status, detail = "no-url", "The source names no URL for it."
        elif url is None:
            status, detail = "bad-url", "Only http and https addresses are fetched."
        return LedgerRow(
            url or shown(address) or identity,
            label,
            status,
            detail,
            source=self.name,
            **{"split": self.split, **known},
        )


def plain_url(address: str) -> str | None:
    """Return an absolute http(s) URL, escaped and without fragment; None if it is none.

    A URL with a user name in it is none: it exists to look like another host.
    """
    from w3lib.url import safe_url_string

    try:
        url: str = safe_url_string(urldefrag(address).url)
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return url if usable and "@" not in parts.netloc else None


def web_url(page: "HtmlResponse", address: str) -> str | None:
    """Return an address of a page as `plain_url` does, relative ones made absolute."""
    try:
        return plain_url(page.urljoin(address))
    except ValueError:
        return None


def shown(address: str) -> str:
    """Shorten what may be a whole image in a data: URL, so that two still differ."""
    if len(address) <= 200:
        return address
    digest = hashlib.sha256(address.encode("utf-8", "replace")).hexdigest()
    return f"{address[:100]}…{digest[:16]}"
