"""An atlas-like web site of synthetic images, with known faults planted in it.

It shows distinct images, their copies, and links that fail. The truth names every served image and
every planted fault; tests score a build against it. A browser shows its pages, and a scraper reads
them.
"""

import hashlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import FolderKind, atomic_folder, write_json, write_text
from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.core.settings_base import Settings
from skindx.data.box import Box
from skindx.data.synthetic.painter import CLASSES, Painting, encode_jpeg, paint

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 2rem auto; max-width: 60rem; }}
figure {{ display: inline-block; margin: 0.5rem; vertical-align: top; width: 16rem; }}
img {{ max-height: 12rem; max-width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
"""
_FOOT = "</body>\n</html>\n"
ROBOTS = "User-agent: *\nDisallow: /private/\n"


@dataclass(frozen=True, slots=True)
class PageFigure:
    """One image on a category page; `path` is a URL path such as /pictures/a.jpg."""

    path: str
    caption: str
    licence: str
    creator: str


def slug(label: str) -> str:
    """Return a class key as it stands in a URL."""
    return label.lower().replace("_", "-")


def title(label: str) -> str:
    """Return a class key as a person reads it."""
    return label.replace("_", " ")


def index_page(labels: Sequence[str]) -> str:
    """Return the start page, one `a.category` a class."""
    links = "".join(
        f'<li><a class="category" data-label="{escape(label)}" '
        f'href="category/{slug(label)}.html">{escape(title(label))}</a></li>\n'
        for label in labels
    )
    return _HEAD.format(title="A painted atlas of skin") + f"<ul>\n{links}</ul>\n" + _FOOT


def category_page(label: str, figures: Sequence[PageFigure], following: str = "") -> str:
    """Return one page of a class; `following` is the file name of its next page."""
    parts = [_HEAD.format(title=escape(title(label)))]
    parts += [_figure(figure) for figure in figures]
    if following:
        parts.append(f'<p><a class="next" href="{following}">next page</a></p>\n')
    parts.append('<p><a href="../index.html">all classes</a></p>\n')
    return "".join(parts) + _FOOT


def _figure(figure: PageFigure) -> str:
    full, caption = escape(f"..{figure.path}"), escape(figure.caption)
    return (
        '<figure class="picture">\n'
        f'<a class="full" href="{full}"><img src="{full}" alt="{caption}"></a>\n'
        f"<figcaption>{caption}, "
        f'<span class="licence">{escape(figure.licence)}</span>, '
        f'<span class="creator">{escape(figure.creator)}</span></figcaption>\n'
        "</figure>\n"
    )


class _Quiet(SimpleHTTPRequestHandler):
    """Serve files, list no folders, log nothing."""

    def list_directory(self, path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class _SiteServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that hangs up early is no fault of the site."""


@contextmanager
def serve_site(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve `folder` on 127.0.0.1 and yield the origin, such as http://127.0.0.1:43211.

    Port 0 takes a free one. Raises UserError when the folder is absent or the port is taken.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder; give one of a painted site, such as `atlas` of a demo."
        )
    try:
        server = _SiteServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))
    except OSError as error:
        raise UserError(
            f"Port {port} cannot be used ({error.strerror}); give another port, or 0 for a free "
            "one."
        ) from None
    with server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


LEAST_PER_CLASS = 4
EXACT, NEAR = 10, 20
"""Copied images within one class: same bytes, or encoded again."""
THREES = 2
"""Number of near-copied images with two copies instead of one."""
CONFLICTING = 2
"""Images of each kind whose copy stands under another class."""
PRIVATE, DEAD = 4, 8
MOVED = b"<!doctype html><title>Moved</title><p>This picture has moved.</p>\n"

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SiteLink:
    """One link on a category page.

    Entries with the same `identity` show the same image, the original comes first. `boxes` and
    `shape` (height, width) are set for what a polite scraper can fetch and decode.
    """

    label: str
    kind: Literal["picture", "private", "dead", "page"]
    identity: str
    data: bytes = b""
    boxes: tuple[Box, ...] = ()
    shape: tuple[int, int] = (0, 0)


def plan_entries(rng: np.random.Generator, per_class: int, seed: int) -> list[SiteLink]:
    """Return every entry of a site; `per_class` distinct images of each class stay when clean.

    Raises UserError when `per_class` is too small to plant the duplicates.
    """
    if per_class < LEAST_PER_CLASS:
        raise UserError(
            f"per_class is {per_class}, which is too small for the planted duplicates; give at "
            f"least {LEAST_PER_CLASS}."
        )
    keys = [(label, index) for label in CLASSES for index in range(per_class)]

    def original(key: tuple[str, int]) -> SiteLink:
        label, index = key
        return _shown(label, index, paint(label, index, seed))

    with ThreadPoolExecutor(cpu_count()) as pool:  # most of the time is in numpy and OpenCV
        entries = list(pool.map(original, keys))
    # Every image is copied at most once or in one way, so that the groups stay apart.
    copied = [keys[at] for at in rng.permutation(len(keys))[: EXACT + NEAR]]
    for label, index in copied[:EXACT]:
        entries.append(_shown(label, index, paint(label, index, seed)))
    for number, (label, index) in enumerate(copied[EXACT:]):
        painting = paint(label, index, seed)
        turns = range(2 if number < THREES else 1)
        entries += [_shown(label, index, *_changed(painting, number + turn)) for turn in turns]
    entries += _conflicts(per_class, seed)
    for label in CLASSES[:PRIVATE]:
        hidden = encode_jpeg(paint(label, per_class + 1, seed).pixels)
        entries.append(SiteLink(label, "private", f"{label}/{per_class + 1}", hidden))
    entries += [SiteLink(label, "dead", f"dead/{label}") for label in CLASSES[-DEAD:]]
    return [*entries, SiteLink(CLASSES[4], "page", "page", MOVED)]


def _conflicts(per_class: int, seed: int) -> Iterator[SiteLink]:
    """Yield images beyond `per_class`, each followed by a copy under another class.

    They are extra because a good build drops both.
    """
    for number in range(2 * CONFLICTING):
        label, other = CLASSES[number], CLASSES[number + 5]
        original = paint(label, per_class, seed)
        yield _shown(label, per_class, original)
        copy = (original, 90) if number < CONFLICTING else _changed(original, number)
        yield _shown(label, per_class, *copy, under=other)


def _shown(
    label: str, index: int, painting: Painting, quality: int = 90, under: str = ""
) -> SiteLink:
    data = encode_jpeg(painting.pixels, quality)
    height, width = painting.pixels.shape[:2]
    identity = f"{label}/{index}"
    return SiteLink(under or label, "picture", identity, data, painting.boxes, (height, width))


def _changed(original: Painting, number: int) -> tuple[Painting, int]:
    """Return a near duplicate and its JPEG quality; `number` chooses how it is changed."""
    pixels, masks = original.pixels, original.masks
    match number % 4:
        case 0:
            pixels, masks = _smaller(pixels), tuple(_smaller(mask) for mask in masks)
        case 1:
            pixels, masks = pixels[:, ::-1], tuple(mask[:, ::-1] for mask in masks)
        case 2:
            pixels, masks = np.rot90(pixels), tuple(np.rot90(mask) for mask in masks)
        case _:
            pixels = np.clip(pixels * 1.08 + 4, 0, 255).astype(np.uint8)
    return Painting(np.ascontiguousarray(pixels), masks), 70


def _smaller(layer: NDArray[np.uint8] | NDArray[np.bool_]) -> NDArray:  # type: ignore[type-arg]
    """Resize an image or a mask to 80 % of its width and height."""
    size = (round(0.8 * layer.shape[1]), round(0.8 * layer.shape[0]))
    way = cv2.INTER_NEAREST if layer.dtype == np.bool_ else cv2.INTER_AREA
    smaller = cv2.resize(layer.astype(np.uint8), size, interpolation=way)
    return np.asarray(smaller).astype(layer.dtype)


TRUTH = "truth.json"


class ServedImage(Settings):
    """One image of the site: the class whose page shows it, and the SHA-256 of its bytes."""

    label: str
    sha256: str


class SiteTruth(Settings):
    """The known truth about a site; a URL path such as /pictures/a.jpg names every image.

    A duplicate group lists all paths that show one image, the first one is the original. The
    groups share no image. In a *conflicting* group the paths carry different classes, so a good
    build drops all of it.
    """

    per_class: int
    """Distinct images of each class that a perfect build keeps."""
    seed: int
    distinct: int
    """Distinct images that a perfect build keeps in all."""
    pictures: dict[str, ServedImage]
    dead_links: tuple[str, ...]
    exact_groups: tuple[tuple[str, ...], ...]
    """Same bytes under several names."""
    near_groups: tuple[tuple[str, ...], ...]
    """Same image encoded again: smaller, brighter, mirrored, turned."""
    not_pictures: tuple[str, ...]
    disallowed: tuple[str, ...]
    """Images that robots.txt forbids to fetch."""

    def conflicting(self, group: tuple[str, ...]) -> bool:
        """Say whether the members of a group carry different classes."""
        return len({self.pictures[path].label for path in group}) > 1

    def write(self, path: Path) -> None:
        write_text(path, self.model_dump_json(indent=1) + "\n")


SITE = "site"
ANNOTATIONS = "annotations.json"
_ATLAS = FolderKind("a site of synthetic images", TRUTH, (SITE, ANNOTATIONS))
CREATORS = ("A. Painter", "B. Brush", "C. Crayon", "D. Dabber", "E. Easel", "F. Fresco")
LICENCES = ("CC BY 4.0", "CC BY-SA 4.0", "CC BY-NC 4.0", "CC0 1.0")


def make_site(folder: Path, *, per_class: int = 60, seed: int = 0) -> SiteTruth:
    """Write `folder`/site, `folder`/truth.json and `folder`/annotations.json; return the truth.

    `folder`/site is what a server shows. `per_class` distinct images a class remain when every
    fault is handled. The annotations are COCO JSON in pixels for every image that may be
    fetched; `file_name` is relative to the site. The same arguments write the same bytes; an
    older folder is replaced. Raises UserError when `per_class` is too small.
    """
    rng = np.random.default_rng([seed, per_class])
    links = _links(rng, plan_entries(rng, per_class, seed))
    truth = _truth(links, per_class, seed)
    with atomic_folder(folder, _ATLAS) as temporary:
        site = temporary / SITE
        for path, entry in links.items():
            if entry.kind != "dead":
                file = site / path.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(entry.data)
        _write_pages(rng, site, links)
        write_json(temporary / ANNOTATIONS, _coco(links))
        truth.write(temporary / TRUTH)
    return truth


def _links(rng: np.random.Generator, entries: list[SiteLink]) -> dict[str, SiteLink]:
    """Give every entry its URL path; neither name nor order reveals which is a copy."""
    numbers = rng.permutation(len(entries))
    links = {}
    for number, entry in zip(numbers.tolist(), entries, strict=True):
        name = f"{slug(entry.label)}-{number:04d}.jpg"
        private = entry.kind == "private"
        links[f"/private/{name}" if private else f"/pictures/{slug(entry.label)}/{name}"] = entry
    return links


def _write_pages(rng: np.random.Generator, site: Path, links: dict[str, SiteLink]) -> None:
    """Write robots.txt, the start page and two pages a class."""
    (site / "category").mkdir()
    (site / "robots.txt").write_text(ROBOTS, encoding="utf-8")
    (site / "index.html").write_text(index_page(CLASSES), encoding="utf-8")
    for label in CLASSES:
        paths = sorted(path for path, entry in links.items() if entry.label == label)
        figures = [
            PageFigure(
                path,
                caption=f"{title(label)}, plate {number}",
                licence=LICENCES[rng.integers(len(LICENCES))],
                creator=CREATORS[rng.integers(len(CREATORS))],
            )
            for number, path in enumerate(paths, 1)
        ]
        half = (len(figures) + 1) // 2
        first, second = f"{slug(label)}.html", f"{slug(label)}-2.html"
        text = category_page(label, figures[:half], second)
        (site / "category" / first).write_text(text, encoding="utf-8")
        text = category_page(label, figures[half:])
        (site / "category" / second).write_text(text, encoding="utf-8")


def _truth(links: dict[str, SiteLink], per_class: int, seed: int) -> SiteTruth:
    shown: dict[str, list[str]] = defaultdict(list)
    for path, entry in links.items():
        if entry.kind == "picture":
            shown[entry.identity].append(path)
    copied = [tuple(paths) for paths in shown.values() if len(paths) > 1]
    exact = tuple(group for group in copied if len({links[path].data for path in group}) == 1)

    def of_kind(kind: str) -> tuple[str, ...]:
        return tuple(path for path, entry in links.items() if entry.kind == kind)

    return SiteTruth(
        per_class=per_class,
        seed=seed,
        distinct=per_class * len(CLASSES),
        pictures={
            path: ServedImage(label=entry.label, sha256=hashlib.sha256(entry.data).hexdigest())
            for path, entry in links.items()
            if entry.kind == "picture"
        },
        dead_links=of_kind("dead"),
        exact_groups=exact,
        near_groups=tuple(group for group in copied if group not in exact),
        not_pictures=of_kind("page"),
        disallowed=of_kind("private"),
    )


def _coco(links: dict[str, SiteLink]) -> dict[str, Any]:
    """Return the boxes of every servable image as COCO JSON (bbox = x, y, width, height)."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for path, entry in links.items():
        if entry.kind != "picture":
            continue
        height, width = entry.shape
        image = {"id": len(images) + 1, "file_name": path.lstrip("/")}
        images.append(image | {"width": width, "height": height})
        for box in entry.boxes:
            sides = (box.x2 - box.x1, box.y2 - box.y1)
            place = {"image_id": image["id"], "category_id": 1, "iscrowd": 0}
            bbox = {"bbox": [box.x1, box.y1, *sides], "area": sides[0] * sides[1]}
            annotations.append({"id": len(annotations) + 1} | place | bbox)
    categories = [{"id": 1, "name": "lesion"}]
    return {"images": images, "annotations": annotations, "categories": categories}
