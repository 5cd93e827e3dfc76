"""All addresses under which HTML offers one image, the largest first.

Pages load images late and in several sizes: `srcset`, `<picture>`, `data-src` and its relatives,
a copy in `<noscript>` for browsers without scripts, and a link to the full size around a
thumbnail. Each is a *candidate* of the same image.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from parsel import Selector


_SPACES = " \t\n\f\r"
_DENSITY = re.compile(r"-?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?x")


@dataclass(frozen=True, slots=True)
class SrcsetEntry:
    """One address of a srcset; `width_px` or `density` is None where the other one is given."""

    address: str
    width_px: int | None = None
    density: float | None = None


def parse_srcset(text: str) -> list[SrcsetEntry]:
    """Return the usable entries in their order; one with an invalid descriptor is left out.

    An address may hold commas, also a data: URL; only commas at its end separate. An entry
    without a descriptor has the density 1.
    """
    entries: list[SrcsetEntry] = []
    at = 0
    while True:
        while at < len(text) and text[at] in _SPACES + ",":
            at += 1
        if at == len(text):
            return entries
        start = at
        while at < len(text) and text[at] not in _SPACES:
            at += 1
        address = text[start:at]
        if address.endswith(","):
            entry = _entry(address.rstrip(","), [])
        else:
            descriptors, at = _descriptors(text, at)
            entry = _entry(address, descriptors)
        if entry:
            entries.append(entry)


def _descriptors(text: str, at: int) -> tuple[list[str], int]:
    """Return the descriptors from position `at` on, and where the next entry begins."""
    descriptors, current, depth = [], "", 0
    while at < len(text):
        char = text[at]
        at += 1
        if depth == 0 and char in _SPACES + ",":
            if current:
                descriptors.append(current)
                current = ""
            if char == ",":
                return descriptors, at
            continue
        depth += {"(": 1, ")": -1 if depth else 0}.get(char, 0)
        current += char
    return [*descriptors, current] if current else descriptors, at


def _entry(address: str, descriptors: list[str]) -> SrcsetEntry | None:
    width_px: int | None = None
    density: float | None = None
    height = False
    for descriptor in descriptors:
        number = descriptor[:-1]
        is_count = number.isascii() and number.isdigit() and len(number) < 10 and int(number) > 0
        if descriptor[-1] == "w" and is_count and width_px is None and density is None:
            width_px = int(number)
        elif descriptor[-1] == "h" and is_count and not height and density is None:
            height = True  # kept for later versions of the standard, and needs a width
        elif _DENSITY.fullmatch(descriptor) and (width_px, density, height) == (None, None, False):
            density = float(number)
        else:
            return None
    if (height and width_px is None) or (density is not None and not 0 <= density < 1e6):
        return None
    return SrcsetEntry(address, width_px, 1.0 if (width_px, density) == (None, None) else density)


_LATE = ("data-src", "data-lazy-src", "data-lazy", "data-original", "data-echo", "data-img-src")
"""Where scripts keep the address until the image scrolls into view."""
_LATE_SETS = ("data-srcset", "data-lazy-srcset", "data-original-set")
_FULL = (
    *("data-full", "data-full-src", "data-full-url", "data-fullsize", "data-orig-file"),
    *("data-large", "data-large-src", "data-large-file", "data-large_image"),
    *("data-zoom", "data-zoom-src", "data-zoom-image", "data-hires", "data-highres", "data-hi-res"),
)
"""Where scripts keep the address of a larger version."""
_READ = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff"})
_UNREAD = frozenset({".gif", ".svg", ".svgz", ".avif", ".heic", ".heif", ".jxl", ".ico"})
_READ_TYPES = frozenset({"image/jpeg", "image/jpg", "image/pjpeg", "image/png", "image/webp"})
_READ_TYPES |= {"image/bmp", "image/tiff"}
_IMAGES = ("img", "source", "picture", "noscript")
_HOLDING = ("picture", "source", "a", "noscript")
MOST_IMAGES = 10_000
"""Most images of one figure."""
MOST_ADDRESSES = 16
"""Most addresses of one image: each may be asked for."""

_LINKED, _SIZED, _FALLBACK, _UNREADABLE, _INLINE = 4, 3, 2, 1, 0
"""Kinds of candidates, the best one first."""


@dataclass(frozen=True, slots=True)
class ImageAddress:
    """One address of an image, as written; the greatest `rank` promises the largest version."""

    address: str
    rank: tuple[int, float, int]
    """(kind, width in pixels as far as the page says it, precedence of the attribute)."""


@dataclass(frozen=True, slots=True)
class Offered:
    """One image of a page: its candidates, the largest first, and its alternative text."""

    candidates: tuple[ImageAddress, ...]
    alternative: str = ""


class Nearest:
    """The nearest element at or above another that a condition holds for; each is walked once."""

    def __init__(self, condition: Callable[[Any], bool]) -> None:
        self._condition = condition
        self._known: dict[Any, Any] = {None: None}

    def __call__(self, element: Any) -> Any:
        """Return it; None: there is none."""
        way = []
        while element not in self._known:
            way.append(element)
            if self._condition(element):
                self._known[element] = element
                break
            element = element.getparent()
        nearest = self._known[element]
        self._known |= dict.fromkeys(way, nearest)
        return nearest


def offered_images(
    figure: "Selector", selector: str, belongs: Callable[[Any], bool] = lambda _: True
) -> list[Offered]:
    """Return the images that `selector` finds in a figure, each with all its candidates.

    Elements that show the same image are one: a link and the image in it, `<picture>` and its
    parts, an image that loads late and its copy in `<noscript>`. An image without any address
    has one candidate, "". What `belongs` not to this figure is left out: it is one of a figure
    inside. Of an image the best MOST_ADDRESSES are taken, and of a figure the first MOST_IMAGES.

    Each element is walked a bounded number of times, however elements are nested.
    """
    matches = [match.root for match in figure.css(selector) if belongs(match.root)]
    matched = dict.fromkeys(islice(_shown(matches, belongs), MOST_IMAGES))
    holder_of = _Holders(figure.root)
    holders = dict.fromkeys(holder_of(element) for element in matched)
    # A holder inside another one is a part of it.
    outer = Nearest(holders.__contains__)
    roots = [holder for holder in holders if outer(holder.getparent()) is None]
    images = [(root, _candidates(root, matched)) for root in roots]
    return [
        Offered(tuple(_ordered(candidates)), _alternative(root))
        for root, candidates in _joined(images)
    ]


def _shown(matches: Sequence[Any], belongs: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield each element itself, or the images in it where it only surrounds them."""
    opened: set[Any] = set()
    above = Nearest(opened.__contains__)
    for element in matches:
        has_address = any(
            element.get(name) for name in ("href", "src", "srcset", *_LATE, *_LATE_SETS, *_FULL)
        )
        if has_address or element.tag in (*_IMAGES, "a"):
            yield element
        elif above(element.getparent()) is None:
            # Matches come in the page's order: of one inside another the images came with that.
            opened.add(element)
            inside = [image for image in element.iter("img") if belongs(image)]
            yield from inside or [element]


class _Holders:
    """The outermost elements of a figure that show nothing but the same image."""

    def __init__(self, figure: Any) -> None:
        self._figure = figure
        self._known: dict[Any, Any] = {}
        self._images = _images_above(figure)

    def __call__(self, element: Any) -> Any:
        """Return an element's holder, which may be the element itself."""
        way = []
        while element not in self._known:
            way.append(element)
            parent = element.getparent()
            # libxml2 closes no <source>, so that what follows it stands inside it.
            ends = parent is None or parent is self._figure or parent.tag not in _HOLDING
            if ends or (parent.tag == "a" and self._images.get(parent, 0) > 1):
                self._known[element] = element
                break
            element = parent
        holder = self._known[element]
        self._known |= dict.fromkeys(way, holder)
        return holder


def _images_above(figure: Any) -> dict[Any, int]:
    """Return how many images each element of a figure holds, 2 for all above 1.

    A copy in `<noscript>` does not count.
    """
    quiet = Nearest(lambda element: element.tag == "noscript")
    end = figure.getparent()
    counts: dict[Any, int] = {end: 2}
    for image in figure.iter("img"):
        above = image.getparent() if quiet(image) is None else end
        while counts.get(above, 0) < 2:
            counts[above] = counts.get(above, 0) + 1
            above = above.getparent()
    return counts


def _candidates(holder: Any, matched: Collection[Any]) -> list[ImageAddress]:
    addresses: list[ImageAddress] = []
    for element in holder.iter():
        if not isinstance(element.tag, str):
            continue  # a comment
        if element.tag == "a":
            address = _attribute(element, "href")
            if address and (element in matched or _leads_to_image(address)):
                addresses.append(ImageAddress(address, (_LINKED, 0.0, 1)))
        elif element.tag in _IMAGES or element in matched:
            addresses += _of_image(element)
        if element.tag in ("a", "img") or element in matched:
            addresses += [
                ImageAddress(_attribute(element, name), (_LINKED, 0.0, 0))
                for name in _FULL
                if _is_address(_attribute(element, name))
            ]
    return addresses


def _of_image(element: Any) -> Iterator[ImageAddress]:
    """Yield what an element itself names in its attributes."""
    shown_px = _number(_attribute(element, "width")) or 1
    usable = _attribute(element, "type").lower().partition(";")[0] in {"", *_READ_TYPES}
    sets = [
        candidate
        for name in ("srcset", *_LATE_SETS)
        for candidate in parse_srcset(_attribute(element, name))
    ]
    has_widths = any(entry.width_px for entry in sets)
    for entry in sets:
        width = entry.width_px or (entry.density or 1.0) * shown_px
        yield ImageAddress(entry.address, (_SIZED if usable else _UNREADABLE, width, 3))
    late = [_attribute(element, name) for name in _LATE if _attribute(element, name)]
    for address in late:
        yield ImageAddress(address, (_SIZED, 1 if has_widths else shown_px, 2))
    plain = _attribute(element, "src") or _attribute(element, "href")
    if plain:
        # Beside other addresses it is a placeholder, or the smallest of them.
        alone = not late and not has_widths
        yield ImageAddress(plain, (_SIZED, shown_px, 0) if alone else (_FALLBACK, shown_px, 0))


def _ordered(candidates: Sequence[ImageAddress]) -> list[ImageAddress]:
    """Return each address once, the best first; one that cannot be read only if all are such."""
    best: dict[str, ImageAddress] = {}
    for candidate in candidates:
        address, (kind, *rest) = candidate.address, candidate.rank
        if address.lower().startswith("data:"):
            kind = _INLINE
        elif _suffix(address) in _UNREAD:
            kind = _UNREADABLE
        judged = ImageAddress(address, (kind, rest[0], int(rest[1])))
        if address not in best or best[address].rank < judged.rank:
            best[address] = judged
    ordered = sorted(best.values(), key=lambda candidate: candidate.rank, reverse=True)
    readable = [candidate for candidate in ordered if candidate.rank[0] > _UNREADABLE]
    return readable[:MOST_ADDRESSES] or ordered[:1] or [ImageAddress("", (_INLINE, 0.0, 0))]


def _joined(images: list[tuple[Any, list[ImageAddress]]]) -> list[tuple[Any, list[ImageAddress]]]:
    """Give what stands in `<noscript>` to the image beside it that loads late, or is the same."""
    joined = [(root, list(candidates)) for root, candidates in images if root.tag != "noscript"]
    place = {root: number for number, (root, _) in enumerate(joined)}
    first: dict[str, int] = {}
    """The first image that has an address, by the address."""
    for number, (_, candidates) in enumerate(joined):
        for candidate in candidates:
            first.setdefault(candidate.address, number)
    for root, candidates in images:
        if root.tag != "noscript":
            continue
        beside = [place[near] for near in (root.getprevious(), root.getnext()) if near in place]
        late = [number for number in beside if _loads_late(joined[number][1])]
        same = [first[candidate.address] for candidate in candidates if candidate.address in first]
        number = min((*late, *same), default=len(joined))
        if number == len(joined):
            place[root] = number
            joined.append((root, []))
        joined[number][1].extend(candidates)
        for candidate in candidates:
            first[candidate.address] = min(number, first.get(candidate.address, number))
    return joined


def _loads_late(candidates: Sequence[ImageAddress]) -> bool:
    """Tell whether scripts exchange the address: it is none yet, or there is a late one."""
    inline = all(candidate.address.lower().startswith("data:") for candidate in candidates)
    return inline or any(candidate.rank[2] == 2 for candidate in candidates)


def _alternative(root: Any) -> str:
    texts = [_attribute(image, "alt") for image in root.iter("img")]
    return next(filter(None, texts), _attribute(root, "title"))


def _leads_to_image(address: str) -> bool:
    """Tell whether a link's path ends as that of an image; a wiki's page "File:a.jpg" is none."""
    return _suffix(address) in _READ and ":" not in _path(address).rpartition("/")[2]


def _is_address(text: str) -> bool:
    """Tell whether an attribute of many meanings holds an address, and not "true" or a number."""
    return "/" in text or _suffix(text) in _READ


def _suffix(address: str) -> str:
    return PurePosixPath(_path(address)).suffix.lower()


def _path(address: str) -> str:
    try:
        return urlsplit(address).path
    except ValueError:
        return ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _attribute(element: Any, name: str) -> str:
    return (element.get(name) or "").strip()
