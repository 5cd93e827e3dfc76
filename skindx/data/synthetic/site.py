"""Write an atlas-like web site of painted images, with known faults planted in it."""

import hashlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from skindx.core.atomic_files import FolderKind, atomic_folder, write_json
from skindx.data.synthetic.pages import (
    MARKUPS,
    ROBOTS,
    THUMB_WIDTH,
    Figure,
    category_page,
    index_page,
    slug,
    title,
)
from skindx.data.synthetic.painter import CLASSES, encode_jpeg
from skindx.data.synthetic.plants import Entry, plan_entries
from skindx.data.synthetic.truth import TRUTH, Served, SiteTruth

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


def _links(rng: np.random.Generator, entries: list[Entry]) -> dict[str, Entry]:
    """Give every entry its URL path; neither name nor order reveals which is a copy."""
    numbers = rng.permutation(len(entries))
    links = {}
    for number, entry in zip(numbers.tolist(), entries, strict=True):
        name = f"{slug(entry.label)}-{number:04d}.jpg"
        private = entry.kind == "private"
        links[f"/private/{name}" if private else f"/pictures/{slug(entry.label)}/{name}"] = entry
    return links


def _write_pages(rng: np.random.Generator, site: Path, links: dict[str, Entry]) -> None:
    """Write robots.txt, the start page and two pages a class."""
    (site / "category").mkdir()
    (site / "robots.txt").write_text(ROBOTS, encoding="utf-8")
    (site / "index.html").write_text(index_page(CLASSES), encoding="utf-8")
    for label in CLASSES:
        paths = sorted(path for path, entry in links.items() if entry.label == label)
        figures = [
            replace(
                _offered(site, path, links[path], number),
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


def _offered(site: Path, path: str, entry: Entry, number: int) -> Figure:
    """Return a figure in one of the ways of MARKUPS, its thumbnail written where it needs one.

    What cannot be fetched is offered as one link: a smaller copy would be another image.
    """
    plain = Figure(path, caption="", licence="", creator="")
    markup = MARKUPS[number % len(MARKUPS)]
    if entry.kind != "picture" or markup in ("link", "late"):
        return replace(plain, markup=markup if entry.kind == "picture" else "link")
    thumb = path.replace("/pictures/", "/thumbs/")
    height, width = entry.shape
    encoded = np.frombuffer(entry.data, np.uint8)
    pixels = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR_RGB), np.uint8)
    size_wh = (THUMB_WIDTH, round(height * THUMB_WIDTH / width))
    small = np.asarray(cv2.resize(pixels, size_wh, interpolation=cv2.INTER_AREA), np.uint8)
    file = site / thumb.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode_jpeg(small))
    return replace(plain, markup=markup, thumb=thumb, width=width)


def _truth(links: dict[str, Entry], per_class: int, seed: int) -> SiteTruth:
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
            path: Served(label=entry.label, sha256=hashlib.sha256(entry.data).hexdigest())
            for path, entry in links.items()
            if entry.kind == "picture"
        },
        dead_links=of_kind("dead"),
        exact_groups=exact,
        near_groups=tuple(group for group in copied if group not in exact),
        not_pictures=of_kind("page"),
        disallowed=of_kind("private"),
    )


def _coco(links: dict[str, Entry]) -> dict[str, Any]:
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
