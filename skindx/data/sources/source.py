"""Interface of a source: images on this machine, or web pages that lead to images.

A new source is one file with one class of these, and one line in SOURCES, or an entry point of the
group `skindx.sources` in another distribution. `Source` is the union of all, for settings.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from skindx.core.kinds import Family
from skindx.core.settings_base import Settings
from skindx.data.ledger import LedgerRow
from skindx.data.origin import Modality
from skindx.data.sources.urls import plain_url, shown

if TYPE_CHECKING:
    from scrapy.http import Response


@dataclass(frozen=True, slots=True)
class Page:
    """A page that a source wants to read; what it shows goes under `label`."""

    url: str
    label: str = ""
    start: str = ""
    """The first page of the series that this one continues; "" if it is that page itself."""


Choice = tuple[LedgerRow, ...]
"""Rows of the same image under several addresses, the largest version first; only one is needed."""


class UnreadablePageError(Exception):
    """An answer came, but it is not what the source's documentation promises."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class ImageSource(Settings):
    """What is known of all images of a source."""

    modality: Modality = Field("", exclude_if=lambda modality: not modality)
    """Dermoscopic: through a dermatoscope; clinical: by a camera or a phone; empty: not known."""
    synthetic: bool = Field(False, exclude_if=lambda synthetic: not synthetic)
    """Paintings made by a program: a bundle that learned from them says so in every answer."""


class LocalSource(ImageSource):
    """Images that lie on this machine."""

    @abstractmethod
    def gather(self, dataset: Path) -> list[LedgerRow]:
        """Copy the images into the store of `dataset`; return one row an image found.

        Raises UserError for input that no dataset can come from.
        """


class WebSource(ImageSource):
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
    @abstractmethod
    def name(self) -> str:
        """How the ledger and the manifest call this source, the same in every run."""

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

    @abstractmethod
    def check(self) -> Collection[str]:
        """Return an address of each site that is asked first.

        Raises UserError for settings that cannot work; needs the `data` extra.
        """

    @abstractmethod
    def begin(self) -> Iterator[Page | LedgerRow]:
        """Yield what is known without asking anybody."""

    def read(self, page: Page, answer: "Response") -> Iterator[Page | LedgerRow | Choice]:
        """Yield what an answer leads to; a row with a status already is not fetched.

        Of a choice the next address is fetched only where the one before gives no image.

        Raises UnreadablePageError. `answer` is an HtmlResponse for a source of HTML pages.
        """
        raise UnreadablePageError("no-pages", f"{self.name} has no pages, {page.url} is none.")

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

    def found(self, address: str, label: str, identity: str = "", **known: Any) -> LedgerRow:
        """Return an image's row: to be fetched, or with the reason why it cannot be.

        `identity` names an image that has no address.
        """
        url = plain_url(address) if address else None
        status = detail = ""
        if not label:
            status, detail = "no-label", "The source says nothing about what it shows."
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
            **known,
        )


SOURCES = Family(
    "source",
    "skindx.sources",
    {
        "atlas": "skindx.data.sources.atlas:AtlasSource",
        "files": "skindx.data.sources.files:FilesSource",
        "folder": "skindx.data.sources.folder:FolderSource",
        "huggingface": "skindx.data.sources.huggingface:HuggingFaceSource",
        "isic": "skindx.data.sources.isic:IsicSource",
        "openverse": "skindx.data.sources.openverse:OpenverseSource",
        "table": "skindx.data.sources.table:TableSource",
        "wikimedia": "skindx.data.sources.wikimedia:WikimediaSource",
    },
)

if TYPE_CHECKING:
    Source = LocalSource | WebSource


def __getattr__(name: str) -> Any:
    """Build the union `Source` when settings ask for it: the kinds import this module."""
    if name == "Source":
        return SOURCES.union()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
