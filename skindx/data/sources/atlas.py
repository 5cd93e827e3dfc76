"""An atlas site: a start page links to category pages, a category page shows images."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from skindx.core.errors import UserError
from skindx.data.ledger import LedgerRow
from skindx.data.sources.columns import described
from skindx.data.sources.image_source import Choice, Page, WebSource, shown, web_url
from skindx.data.sources.markup import Nearest, offered_images

if TYPE_CHECKING:
    from parsel import Selector
    from scrapy.http import HtmlResponse


_DEEPEST = 8
"""Most figures around one figure."""
_SELECTORS = ("category", "next_page", "figure", "picture", "licence", "creator", "caption")


class AtlasSource(WebSource):
    """A site whose images are found by CSS selectors.

    `category` and `next_page` are looked up in a page, `figure` in a category page; `picture`,
    `licence`, `creator` and `caption` inside one figure. A category's label is its link's
    attribute `data-label` if it has one, else the link's text. `picture` finds an image or the
    link to it; of all addresses under which the page offers that image the largest is fetched.
    """

    kind: Literal["atlas"]
    start: str = Field(pattern=r"^https?://[^/\s]+")
    category: str = Field("a.category", min_length=1)
    next_page: str = Field("a.next", min_length=1)
    figure: str = Field("figure.picture", min_length=1)
    picture: str = Field("a.full, img.full", min_length=1)
    licence: str = Field(".licence", min_length=1)
    creator: str = Field(".creator", min_length=1)
    caption: str = Field("figcaption", min_length=1)
    default_licence: str = ""
    """Licence of an image whose figure names none."""
    attribution: str = ""
    """Attribution that the site asks for."""

    html: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The start page's address."""
        return self.start

    def check(self) -> tuple[str]:
        """Check selectors and start page. Raises UserError; needs the `data` extra."""
        self.check_selectors()
        return (self.start,)

    def check_selectors(self) -> None:
        """Raise UserError for a selector that is no CSS; needs the `data` extra."""
        from cssselect import SelectorError
        from parsel.csstranslator import HTMLTranslator

        for name in _SELECTORS:
            selector = getattr(self, name)
            try:
                HTMLTranslator().css_to_xpath(selector)
            except SelectorError as error:
                raise UserError(
                    f"`{name}` of the source {self.start} in the recipe is {selector!r}, which is "
                    f"not a CSS selector ({error}); write a selector such as `figure.picture a`."
                ) from None

    def begin(self) -> Iterator[Page]:
        yield Page(self.start)

    def read(self, page: Page, answer: "HtmlResponse") -> Iterator[Page | Choice]:
        """Read a category page, which has a label, or an index page, which has none."""
        if page.label:
            yield from figures_of(self, answer, page.label)
        else:
            for address, label in categories(self, answer):
                yield Page(web_url(answer, address) or address[:200], label)
        for address in next_pages(self, answer):
            yield Page(web_url(answer, address) or address[:200], page.label)

    def barren(self, labels: int, failures: Sequence[str]) -> str:
        """Say which selector found nothing."""
        first = f" First problem: {failures[0]}" if failures else ""
        if labels == 0 and failures:
            return f"The start page {failures[0]} Check `start` and try again later."
        if labels == 0:
            return (
                f"{self.start} has no link that matches category = {self.category!r}; "
                "look into the page's HTML and set `category`."
            )
        return (
            f"{self.start}: none of {labels} categories shows an image that matches "
            f"figure = {self.figure!r} with picture = {self.picture!r} inside; "
            f"look into a category page's HTML and set them.{first}"
        )


def categories(source: AtlasSource, page: "HtmlResponse") -> Iterator[tuple[str, str]]:
    """Yield (address as written, label) of each category link of an index page."""
    for link in page.css(source.category):
        label = link.attrib.get("data-label", "").strip() or _text(link)
        if label and _address(link):
            yield _address(link), label


def next_pages(source: AtlasSource, page: "HtmlResponse") -> Iterator[str]:
    """Yield the addresses, as written, of the pages that continue this one."""
    for link in page.css(source.next_page):
        if _address(link):
            yield _address(link)


def figures_of(source: AtlasSource, page: "HtmlResponse", label: str) -> Iterator[Choice]:
    """Yield the rows of each image of a category page, the largest version first.

    A row has the status "" if it can be fetched, or bad-url. An image belongs to the innermost
    figure around it; what that one does not say of it, the figure around that one may.
    """
    figures = page.css(source.figure)
    kept = _without_deepest([figure.root for figure in figures])
    innermost = Nearest(kept.__contains__)
    texts_of: dict[Any, dict[str, str]] = {}
    for figure in figures:
        root = figure.root
        if root not in kept:
            continue

        def belongs(element: Any, root: Any = root) -> bool:
            return innermost(element) is root

        outer = texts_of.get(innermost(root.getparent()), {})
        texts_of[root] = texts = {
            name: _first_text(figure.css(getattr(source, name)), belongs) or outer.get(name, "")
            for name in ("licence", "creator", "caption")
        }
        for image in offered_images(figure, source.picture, belongs):
            caption = described(texts["caption"], image.alternative)
            urls = {
                web_url(page, candidate.address): candidate.address
                for candidate in image.candidates
            }
            # An address that is no URL is named only where the image has no other.
            usable: list[str | None] = [url for url in urls if url] or [None]
            yield tuple(
                LedgerRow(
                    url=url or shown(urls[None]),
                    label=label,
                    status="" if url else "bad-url",
                    detail="" if url else "Only http and https addresses are fetched.",
                    source=source.start,
                    page_url=page.url,
                    licence=texts["licence"] or source.default_licence,
                    creator=texts["creator"],
                    attribution=source.attribution,
                    caption=caption,
                )
                for url in usable
            )


def _without_deepest(figures: Sequence[Any]) -> set[Any]:
    """Return the figures, which come in the page's order, that at most _DEEPEST others surround.

    Each level is read once more: without an end, nested figures cost their square.
    """
    around = Nearest(set(figures).__contains__)
    depth: dict[Any, int] = {None: -1}
    for figure in figures:
        depth[figure] = depth[around(figure.getparent())] + 1
    return {figure for figure in figures if depth[figure] <= _DEEPEST}


def _first_text(elements: Sequence["Selector"], belongs: Callable[[Any], bool]) -> str:
    return next((_text(element) for element in elements if belongs(element.root)), "")


def _address(element: "Selector") -> str:
    return (element.attrib.get("href") or element.attrib.get("src") or "").strip()


def _text(*elements: "Selector") -> str:
    return " ".join(" ".join(element.css("::text").getall()) for element in elements).strip()
