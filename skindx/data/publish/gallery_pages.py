"""A dataset as static pages: what was kept and dropped, with the reasons.

Tiles become pages: for each class and each split or reason, and for all of them. No script,
no outside reference, every value escaped: pages of untrusted text that open from the disk. They
show private images and are not for publishing.
"""

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from skindx.core.atomic_files import FolderKind, atomic_folder, finish_folder, leftovers, write_json
from skindx.core.errors import UserError
from skindx.core.progress import Progress, silent
from skindx.core.text import html_environment, printable
from skindx.data.layout import GALLERY
from skindx.data.manifest import SPLITS
from skindx.data.publish.gallery_tiles import VIEWS, Tile, Tiles, View, read_tiles
from skindx.data.summary import STAGES
from skindx.imaging.sandboxed_images import THUMBS, thumbnail_path, write_thumbnails

if TYPE_CHECKING:
    from jinja2 import Environment


PER_PAGE = 200
TITLES: dict[View, str] = {"kept": "Kept", "dropped": "Dropped"}
FACETS: dict[View, str] = {"kept": "Split", "dropped": "Reason"}
ALL = ""
"""The choice of every class, or of every facet."""

_LONGEST = 300


MOST_CHOICES = 150
"""A filter with more has a page of its own: each page that lists all would make pages grow with the
square of the classes."""
MOST_SHOWN = 20
"""Labels and addresses of one image on a page: the same bytes may bear thousands."""


@dataclass(frozen=True, slots=True)
class FilterChoice:
    """One link of a filter; `page` is "" where there is nothing to see."""

    name: str
    count: int
    page: str
    current: bool


@dataclass(frozen=True, slots=True)
class PageFilter:
    """The choices of a page; of too many the current one alone, and the `page` that lists them."""

    heading: str
    choices: Sequence[FilterChoice]
    page: str = ""


class PagedTiles:
    """The tiles of one view by class and facet; pages are named by number, never by a label."""

    def __init__(self, view: View, tiles: Sequence[Tile]) -> None:
        self.view = view
        labels = Counter(label for tile in tiles for label in tile.labels)
        facets = Counter(facet for tile in tiles for facet in tile.facets)
        first = [split for split in SPLITS if split in facets] if view == "kept" else []
        rest = [facet for facet, _ in facets.most_common() if facet not in first]
        self.labels = [ALL, *sorted(labels.keys() - {ALL}, key=str.casefold)]
        self.facets = list(dict.fromkeys((ALL, *first, *rest)))
        self._label_number = {label: number for number, label in enumerate(self.labels)}
        self._facet_number = {facet: number for number, facet in enumerate(self.facets)}
        self._tiles: dict[tuple[str, str], list[Tile]] = {(ALL, ALL): []}
        for tile in tiles:
            for label in {ALL, *tile.labels}:
                for facet in {ALL, *tile.facets}:
                    self._tiles.setdefault((label, facet), []).append(tile)

    def tiles(self, label: str, facet: str) -> Sequence[Tile]:
        return self._tiles.get((label, facet), [])

    def page(self, label: str, facet: str, number: int = 1) -> str:
        """Return the file name of a page; "" for one without tiles."""
        if (label, facet) not in self._tiles:
            return ""
        place = f"{self._label_number[label]}-{self._facet_number[facet]}"
        return f"{self.view}-{place}-{number}.html"

    def _filled(self) -> list[tuple[str, str]]:
        """Return each (label, facet) that has a page, in the order of both."""
        return sorted(
            self._tiles, key=lambda key: (self._label_number[key[0]], self._facet_number[key[1]])
        )

    def pages(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield (label, facet, number, count) of each page."""
        for label, facet in self._filled():
            count = max(1, -(-len(self.tiles(label, facet)) // PER_PAGE))
            for number in range(1, count + 1):
                yield label, facet, number, count

    def filters(self, label: str, facet: str) -> tuple[PageFilter, PageFilter]:
        """Return the filter of facets under this class, and of classes under this facet."""
        few_facets, few_labels = (len(of) <= MOST_CHOICES for of in (self.facets, self.labels))
        facets = self.facets if few_facets else [facet]
        labels = self.labels if few_labels else [label]
        return (
            PageFilter(
                FACETS[self.view],
                [self._choice(label, name, name, current=name == facet) for name in facets],
                "" if few_facets else self._list_of_facets(label),
            ),
            PageFilter(
                "Class",
                [self._choice(name, facet, name, current=name == label) for name in labels],
                "" if few_labels else self._list_of_labels(facet),
            ),
        )

    def lists(self) -> Iterator[tuple[str, str, list[FilterChoice]]]:
        """Yield (file name, heading, choices) of each page that lists what a filter cannot hold."""
        filled = self._filled()
        if len(self.facets) > MOST_CHOICES:
            for label, keys in groupby(filled, key=lambda key: key[0]):
                choices = [self._choice(*key, key[1]) for key in keys]
                yield self._list_of_facets(label), FACETS[self.view], choices
        if len(self.labels) > MOST_CHOICES:
            by_facet = sorted(filled, key=lambda key: self._facet_number[key[1]])
            for facet, keys in groupby(by_facet, key=lambda key: key[1]):
                choices = [self._choice(*key, key[0]) for key in keys]
                yield self._list_of_labels(facet), "Class", choices

    def _list_of_facets(self, label: str) -> str:
        return f"{self.view}-facets-{self._label_number[label]}.html"

    def _list_of_labels(self, facet: str) -> str:
        return f"{self.view}-classes-{self._facet_number[facet]}.html"

    def facet_choices(self) -> list[FilterChoice]:
        return [self._choice(ALL, facet, facet) for facet in self.facets]

    def _choice(self, label: str, facet: str, name: str, *, current: bool = False) -> FilterChoice:
        count = len(self.tiles(label, facet))
        return FilterChoice(name or "all", count, self.page(label, facet), current)


def write_pages(folder: Path, tiles: Tiles, shown: Collection[str]) -> None:
    """Write index.html and all pages; `shown` have a thumbnail."""
    environment = _environment(shown)
    shelves = [PagedTiles(view, tiles.by_view[view]) for view in VIEWS]
    tabs = [(shelf.view, TITLES[shelf.view], shelf.facet_choices()[0]) for shelf in shelves]
    environment.globals.update(name=tiles.name, tabs=tabs, most_shown=MOST_SHOWN)

    def write(name: str, template: str, **values: Any) -> None:
        html = environment.get_template(template).render(**values)
        (folder / name).write_text(html, encoding="utf-8")

    for shelf in shelves:
        about = {"view": shelf.view, "title": TITLES[shelf.view]}
        for label, facet, number, count in shelf.pages():
            all_tiles, start = shelf.tiles(label, facet), (number - 1) * PER_PAGE
            write(
                shelf.page(label, facet, number),
                "page.html.jinja",
                **about,
                filters=shelf.filters(label, facet),
                tiles=all_tiles[start : start + PER_PAGE],
                total=len(all_tiles),
                start=start,
                number=number,
                count=count,
                page_of=partial(shelf.page, label, facet),
                near=near_numbers(number, count),
            )
        for name, heading, choices in shelf.lists():
            write(name, "list.html.jinja", **about, heading=heading, choices=choices)
    write(
        "index.html",
        "index.html.jinja",
        view="",
        shelves=[
            (TITLES[shelf.view], FACETS[shelf.view], shelf.facet_choices()) for shelf in shelves
        ],
        kept=shelves[0],
        funnel=tiles.funnel,
        boxes=tiles.boxes,
        waiting=tiles.waiting,
        stages=STAGES,
    )


def near_numbers(number: int, count: int) -> list[int]:
    """Return the pages that page `number` of `count` links to: the ends, those beside it.

    0 stands for those between that are left out.
    """
    near = range(max(1, number - 3), min(count, number + 3) + 1)
    start = [] if near[0] == 1 else [1] if near[0] == 2 else [1, 0]
    end = [] if near[-1] == count else [count] if near[-1] == count - 1 else [0, count]
    return [*start, *near, *end]


def _environment(shown: Collection[str]) -> "Environment":
    environment = html_environment("skindx.data.publish")
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


MARK = "gallery.json"
INDEX = "index.html"
_PAGES = (INDEX, *(f"{view}-*.html" for view in (*VIEWS, "review", "copies")))
"""Galleries of older versions have further views, and drawings of pairs."""
_GALLERY = FolderKind("a gallery", MARK, (*_PAGES, THUMBS, "pairs"))


def write_gallery(dataset: Path, out: Path, *, progress: Progress = silent) -> Path:
    """Write the gallery of a dataset folder; return its first page.

    An older gallery in `out` stays until the new one is whole, and gives its thumbnails. Raises
    UserError for what is no dataset, and for a folder that holds anything but a gallery.
    """
    finish_folder(out, MARK)
    _GALLERY.check(out)
    if (out / MARK).exists():
        dataset_of(out)
    _sweep(out)
    tiles = read_tiles(dataset)
    with atomic_folder(out, _GALLERY) as folder:
        files = {sha256: dataset / path for sha256, path in tiles.files.items()}
        shown = write_thumbnails(folder / THUMBS, files, out / THUMBS, progress)
        write_pages(folder, tiles, shown)
        write_json(folder / MARK, {"dataset": str(dataset.resolve())})
    return out / INDEX


def dataset_of(gallery: Path) -> Path:
    """Return the dataset folder that a gallery shows. Raises UserError for what is no gallery."""
    try:
        mark: Any = json.loads((gallery / MARK).read_text(encoding="utf-8"))
        return Path(mark["dataset"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{gallery} is no gallery; give a folder that `skindx gallery` wrote."
        ) from None


def galleries_in(dataset: Path) -> list[Path]:
    """Return DATASET/gallery, if there is one, or what a killed writing left of it."""
    folder = dataset / GALLERY
    return [folder] if folder.is_dir() or leftovers(folder) else []


def _sweep(out: Path) -> None:
    # They hold thumbnails, maybe of an image that was taken down since.
    for folder in leftovers(out):
        shutil.rmtree(folder)
