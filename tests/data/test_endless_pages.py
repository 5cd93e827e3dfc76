"""Pages that are built to take long: work grows with a page's size and not with its square."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from types import FrameType
from typing import Any

import pytest
from scrapy.http import HtmlResponse

from skindx.data.crawl import spider
from skindx.data.ledger import LedgerRow
from skindx.data.sources.atlas import AtlasSource, figures_of
from skindx.data.sources.image_source import Choice, Page, UnreadablePageError
from skindx.data.sources.markup import MOST_ADDRESSES


def images_of(body: str, **selectors: str) -> list[Choice]:
    """Return what a category page shows."""
    source = AtlasSource(kind="atlas", start="http://a.org/", figure="figure", picture="img")
    source = source.model_copy(update=selectors)
    page = HtmlResponse("http://a.org/c", body=f"<html><body>{body}</body></html>".encode())
    return list(figures_of(source, page, "Acne"))


def calls(work: Callable[[], object]) -> int:
    """Return how many functions of Python and C a piece of work calls."""
    counted = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def img(n: int) -> str:
    return f'<img src="/{n}.jpg">'


SHAPES: dict[str, Callable[[int], str]] = {
    "images in one link": lambda n: (
        f'<figure><a href="/p">{"".join(map(img, range(n)))}</a></figure>'
    ),
    "figures in figures": lambda n: "".join(f"<figure>{img(k)}" for k in range(n)),
    "pictures in pictures": lambda n: (
        f"<figure>{''.join(f'<picture>{img(k)}' for k in range(n))}</figure>"
    ),
    "sources in sources": lambda n: f"<figure>{'<source>' * n}{img(0)}</figure>",
    "links around noscripts": lambda n: "<figure>{}</figure>".format(
        "".join(f'<a href="/p">{img(k)}<noscript>{img(k)}</noscript></a>' for k in range(n))
    ),
    "noscripts alone": lambda n: "<figure>{}</figure>".format(
        "".join(f"{img(k)}<noscript>{img(k + n)}</noscript>" for k in range(n))
    ),
    "blocks in blocks": lambda n: f"<figure>{''.join(f'<div>{img(k)}' for k in range(n))}</figure>",
    "captions in captions": lambda n: (
        f"<figure>{'<figcaption>a' * n}{'</figcaption>' * n}{img(0)}</figure>"
    ),
    "one image, many sizes": lambda n: '<figure><img srcset="{}"></figure>'.format(
        ", ".join(f"/{k}.jpg {k + 1}w" for k in range(n))
    ),
    "many figures": lambda n: "".join(f"<figure>{img(k)}</figure>" for k in range(n)),
}
ONCE = (
    "pictures in pictures",
    "sources in sources",
    "captions in captions",
    "one image, many sizes",
)


@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_with_a_page_and_not_with_its_square(shape: str) -> None:
    selectors = {"picture": "div"} if shape == "blocks in blocks" else {}
    images_of(SHAPES[shape](10), **selectors)  # what is loaded or compiled once
    few, many = SHAPES[shape](25), SHAPES[shape](100)
    assert calls(lambda: images_of(many, **selectors)) < 4.6 * calls(
        lambda: images_of(few, **selectors)
    )
    urls = [choice[0].url for choice in images_of(many, **selectors)]
    expected = {"noscripts alone": 200}.get(shape, 1 if shape in ONCE else 100)
    assert len(urls) == len(set(urls)) == expected


def test_an_image_of_many_sizes_has_its_largest_ones() -> None:
    (choice,) = images_of(SHAPES["one image, many sizes"](100))
    largest = [f"http://a.org/{n}.jpg" for n in range(99, 99 - MOST_ADDRESSES, -1)]
    assert [row.url for row in choice] == largest


def test_an_image_belongs_to_the_innermost_figure_around_it() -> None:
    inner = '<figure>{}<figcaption>{}</figcaption><b class="licence">{}</b></figure>'
    body = (
        f"<figure>{inner.format(img(1), 'one', 'CC0')}{inner.format(img(2), 'two', '')}{img(3)}"
        '<figcaption>both</figcaption><b class="licence">CC BY</b></figure>'
    )
    said = {c[0].url[-5:]: (c[0].caption, c[0].licence) for c in images_of(body)}
    assert said == {
        "1.jpg": ("one", "CC0"),
        "2.jpg": ("two", "CC BY"),
        "3.jpg": ("both", "CC BY"),
    }


def test_reading_one_page_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(0, spider.PAGE_S / 5)
    monkeypatch.setattr(spider, "thread_time", lambda: next(ticks))
    row = LedgerRow("http://a.org/1.jpg", "Acne", "")

    def endless() -> Iterator[Page | LedgerRow | Choice]:
        for n in count():
            yield replace(row, url=f"http://a.org/{n}.jpg")

    read = spider._in_time(endless())
    assert [next(read) for _ in range(6)]  # what came before stays
    with pytest.raises(UnreadablePageError, match="takes more than 10 s; the rest is left out"):
        next(read)
