import hashlib
import json
import re
import urllib.error
import urllib.request
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import urljoin
from urllib.robotparser import RobotFileParser

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.synthetic.painter import CLASSES
from skindx.data.synthetic.site import TRUTH, SiteTruth, make_site, serve_site
from skindx.imaging.image_formats import image_suffix

PER_CLASS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds a small site."""
    folder = tmp_path_factory.mktemp("atlas") / "made"
    make_site(folder, per_class=PER_CLASS, seed=1)
    return folder


@pytest.fixture(scope="module")
def truth(folder: Path) -> SiteTruth:
    return SiteTruth.model_validate_json((folder / "truth.json").read_bytes())


class _Links(HTMLParser):
    """Collect what a scraper's selectors would: links by class, texts inside a figure."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, dict[str, str | None]]] = []
        self.texts: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and found.get("class"):
            self.links.append((str(found["class"]), found))
        if tag in ("span", "figure"):
            self.texts[str(found.get("class"))] += 1

    def hrefs(self, kind: str) -> list[str]:
        return [str(attributes["href"]) for name, attributes in self.links if name == kind]


def fetch(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def crawl(origin: str) -> dict[str, list[str]]:
    """Follow the category and next links; return the image URL paths of every class."""
    start = _Links()
    start.feed(fetch(f"{origin}/index.html")[1].decode())
    shown: dict[str, list[str]] = {}
    for kind, attributes in start.links:
        assert kind == "category"
        paths = shown.setdefault(str(attributes["data-label"]), [])
        page = urljoin(f"{origin}/index.html", str(attributes["href"]))
        while page:
            status, body = fetch(page)
            assert status == 200
            links = _Links()
            links.feed(body.decode())
            fulls = [urljoin(page, href) for href in links.hrefs("full")]
            paths += [full.removeprefix(origin) for full in fulls]
            for every_figure in ("picture", "licence", "creator"):
                assert links.texts[every_figure] == len(fulls)
            following = links.hrefs("next")
            page = urljoin(page, following[0]) if following else ""
    return shown


def test_a_crawl_meets_everything_planted(folder: Path, truth: SiteTruth) -> None:
    with serve_site(folder / "site") as origin:
        shown = crawl(origin)
        paths = [path for listed in shown.values() for path in listed]
        answers = {path: fetch(origin + path) for path in paths}
    assert set(shown) == set(CLASSES)
    assert len(paths) == len(set(paths))
    planted = {*truth.dead_links, *truth.not_pictures, *truth.disallowed}
    assert set(paths) == planted | truth.pictures.keys()
    for path, (status, body) in answers.items():
        assert status == (404 if path in truth.dead_links else 200)
        if path in truth.pictures:
            assert path in shown[truth.pictures[path].label]
            assert hashlib.sha256(body).hexdigest() == truth.pictures[path].sha256
            assert image_suffix(body) == ".jpg"
        if path in truth.not_pictures:
            assert image_suffix(body) is None


def test_enough_is_planted(truth: SiteTruth) -> None:
    assert len(truth.dead_links) >= 6
    assert len(truth.not_pictures) == 1
    assert sum(len(group) - 1 for group in truth.exact_groups) >= 10
    assert sum(len(group) - 1 for group in truth.near_groups) >= 20
    assert sum(truth.conflicting(group) for group in truth.exact_groups) == 2
    assert sum(truth.conflicting(group) for group in truth.near_groups) == 2


def test_distinct_images_remain_in_every_class(truth: SiteTruth) -> None:
    gone = set()
    for group in (*truth.exact_groups, *truth.near_groups):
        gone |= set(group if truth.conflicting(group) else group[1:])
    kept = Counter(truth.pictures[path].label for path in truth.pictures.keys() - gone)
    assert kept == dict.fromkeys(CLASSES, PER_CLASS)
    assert truth.distinct == PER_CLASS * len(CLASSES)


def test_robots_forbids_the_private_images_alone(folder: Path, truth: SiteTruth) -> None:
    robots = RobotFileParser()
    robots.parse((folder / "site" / "robots.txt").read_text().splitlines())
    assert truth.disallowed
    assert not any(robots.can_fetch("*", path) for path in truth.disallowed)
    assert all(robots.can_fetch("*", path) for path in truth.pictures)


def grey(folder: Path, path: str) -> NDArray[np.float32]:
    image = cv2.imread(str(folder / "site") + path, cv2.IMREAD_GRAYSCALE)
    small = cv2.resize(image, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32)
    return (small - small.mean()) / small.std()


def likeness(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return the best correlation over the eight flips and turns."""
    turned = (np.rot90(side, k) for side in (other, other[:, ::-1]) for k in range(4))
    return max(float((one * image).mean()) for image in turned)


def test_duplicates_show_the_same_image_and_others_do_not(folder: Path, truth: SiteTruth) -> None:
    for group in truth.exact_groups:
        assert len({truth.pictures[path].sha256 for path in group}) == 1
    for group in truth.near_groups:
        assert len({truth.pictures[path].sha256 for path in group}) == len(group)
        first, *copies = (grey(folder, path) for path in group)
        assert all(likeness(first, copy) > 0.98 for copy in copies)
    firsts = [grey(folder, group[0]) for group in truth.near_groups]
    strangers = [likeness(a, b) for a, b in pairwise(firsts)]
    assert max(strangers) < 0.95


def test_annotations_cover_every_image_and_follow_the_copies(
    folder: Path, truth: SiteTruth
) -> None:
    coco = json.loads((folder / "annotations.json").read_text())
    assert [category["name"] for category in coco["categories"]] == ["lesion"]
    images = {"/" + image["file_name"]: image for image in coco["images"]}
    assert images.keys() == truth.pictures.keys()
    boxes: dict[str, list[list[float]]] = {path: [] for path in images}
    names = {image["id"]: path for path, image in images.items()}
    for annotation in coco["annotations"]:
        boxes[names[annotation["image_id"]]].append(annotation["bbox"])
    for path, image in images.items():
        height, width = cv2.imread(str(folder / "site") + path).shape[:2]
        assert (image["height"], image["width"]) == (height, width)
        assert boxes[path]
        for x, y, w, h in boxes[path]:
            assert 0 <= x < x + w <= width
            assert 0 <= y < y + h <= height
    for group in (*truth.exact_groups, *truth.near_groups):
        # A flip, a turn or a new size keeps the share of the image that the boxes take.
        shares = [
            sum(w * h for _, _, w, h in boxes[path])
            / (images[path]["width"] * images[path]["height"])
            for path in group
        ]
        assert shares == pytest.approx([shares[0]] * len(group), rel=0.05)


def test_same_arguments_write_the_same_bytes_over_an_older_site(
    folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "again"
    (target / "site").mkdir(parents=True)
    (target / "site" / "stale.html").write_text("old")
    (target / TRUTH).write_text("{}")  # by this an older site is known
    make_site(target, per_class=PER_CLASS, seed=1)

    def content(root: Path) -> dict[str, bytes]:
        files = (path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    assert content(target) == content(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_too_few_images_to_plant_in(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"per_class is 3, which is too small for the planted duplicates; give at least 4",
    ):
        make_site(tmp_path / "site", per_class=3)
    assert list(tmp_path.iterdir()) == []


def test_server_is_local_lists_no_folder_and_ends(folder: Path) -> None:
    with serve_site(folder / "site") as origin:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", origin)
        assert fetch(f"{origin}/")[0] == 200
        assert fetch(f"{origin}/pictures/")[0] == 404
        assert fetch(f"{origin}/../truth.json")[0] == 404
        with (
            pytest.raises(UserError, match="cannot be used"),
            serve_site(folder / "site", int(origin.rsplit(":", 1)[1])),
        ):
            pass
    with pytest.raises(urllib.error.URLError):
        fetch(f"{origin}/")


def test_serving_nothing_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="is not a folder; give"),
        serve_site(tmp_path / "nowhere"),
    ):
        pass
