"""Tiles become pages: for each class and each split, reason or flag, and for all of them."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from skindx.data.funnel import STAGES
from skindx.data.gallery.tile import Tile
from skindx.data.gallery.tiles import VIEWS, Tiles, View
from skindx.data.manifest import SPLITS
from skindx.imaging.thumbnails import thumbnail_path
from skindx.templates import html_environment
from skindx.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment

PER_PAGE = 200
TITLES: dict[View, str] = {
    "kept": "Kept",
    "dropped": "Dropped",
    "review": "To review",
    "copies": "Copies",
}
FACETS: dict[View, str] = {
    "kept": "Split",
    "dropped": "Reason",
    "review": "Flag",
    "copies": "Finding",
}
ALL = ""
"""The choice of every class, or of every facet."""

_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Choice:
    """One link of a filter; `page` is "" where there is nothing to see."""

    name: str
    count: int
    page: str
    current: bool


class Shelf:
    """The tiles of one view by class and facet; pages are named by number, never by a label."""

    def __init__(self, view: View, tiles: Sequence[Tile]) -> None:
        self.view = view
        labels = Counter(label for tile in tiles for label in tile.labels)
        facets = Counter(facet for tile in tiles for facet in tile.facets)
        first = [split for split in SPLITS if split in facets] if view == "kept" else []
        rest = [facet for facet, _ in facets.most_common() if facet not in first]
        self.labels = [ALL, *sorted(labels.keys() - {ALL}, key=str.casefold)]
        self.facets = [ALL, *first, *rest]
        self._tiles: dict[tuple[str, str], list[Tile]] = {}
        for tile in tiles:
            for label in {ALL, *tile.labels}:
                for facet in {ALL, *tile.facets}:
                    self._tiles.setdefault((label, facet), []).append(tile)

    def tiles(self, label: str, facet: str) -> Sequence[Tile]:
        """Return the tiles of a class and facet."""
        return self._tiles.get((label, facet), [])

    def page(self, label: str, facet: str, number: int = 1) -> str:
        """Return the file name of a page; "" for one without tiles."""
        if not self.tiles(label, facet) and (label, facet) != (ALL, ALL):
            return ""
        place = f"{self.labels.index(label)}-{self.facets.index(facet)}"
        return f"{self.view}-{place}-{number}.html"

    def pages(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield (label, facet, number, count) of each page."""
        for label in self.labels:
            for facet in self.facets:
                if self.page(label, facet):
                    count = max(1, -(-len(self.tiles(label, facet)) // PER_PAGE))
                    for number in range(1, count + 1):
                        yield label, facet, number, count

    def choices(self, label: str, facet: str) -> tuple[list[Choice], list[Choice]]:
        """Return the filter of classes under this facet, and of facets under this class."""
        return (
            [self._choice(name, facet, name, name == label) for name in self.labels],
            [self._choice(label, name, name, name == facet) for name in self.facets],
        )

    def _choice(self, label: str, facet: str, name: str, current: bool) -> Choice:
        count = len(self.tiles(label, facet))
        return Choice(name or "all", count, self.page(label, facet), current)


def write_pages(
    folder: Path, tiles: Tiles, shown: Collection[str], drawn: Collection[str] = ()
) -> None:
    """Write index.html and all pages; `shown` have a thumbnail, the drawings `drawn` are there."""
    environment = _environment(shown)
    environment.globals["drawn"] = drawn
    shelves = [Shelf(view, tiles.by_view[view]) for view in VIEWS]
    tabs = [(shelf.view, TITLES[shelf.view], shelf.choices(ALL, ALL)[0][0]) for shelf in shelves]
    common: dict[str, Any] = {"name": tiles.name, "tabs": tabs}
    for shelf in shelves:
        for label, facet, number, count in shelf.pages():
            start = (number - 1) * PER_PAGE
            labels, facets = shelf.choices(label, facet)
            html = environment.get_template("page.html.jinja").render(
                **common,
                view=shelf.view,
                title=TITLES[shelf.view],
                facet_title=FACETS[shelf.view],
                labels=labels,
                facets=facets,
                tiles=shelf.tiles(label, facet)[start : start + PER_PAGE],
                total=len(shelf.tiles(label, facet)),
                start=start,
                number=number,
                pages=[shelf.page(label, facet, number + 1) for number in range(count)],
            )
            (folder / shelf.page(label, facet, number)).write_text(html, encoding="utf-8")
    index = environment.get_template("index.html.jinja").render(
        **common,
        view="",
        shelves=[
            (TITLES[shelf.view], FACETS[shelf.view], *shelf.choices(ALL, ALL)) for shelf in shelves
        ],
        kept=shelves[0],
        funnel=tiles.funnel,
        boxes=tiles.boxes,
        stages=STAGES,
    )
    (folder / "index.html").write_text(index, encoding="utf-8")


def _environment(shown: Collection[str]) -> "Environment":
    environment = html_environment("skindx.data.gallery")
    environment.filters.update(plain=plain, web=web)
    environment.globals["thumbnail"] = lambda sha256: (
        thumbnail_path(sha256) if sha256 in shown else ""
    )
    return environment


def plain(text: str) -> str:
    """Return untrusted text without control characters, cut to a limit."""
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def web(url: str) -> str:
    """Return a URL that a link may lead to, "" for a path and for any other scheme."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in ("http", "https") and parts.netloc else ""
