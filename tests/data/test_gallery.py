import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from gallery_fakes import HOSTILE, gallery_dataset
from PIL import Image

from skindx.core.errors import UserError
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.publish import gallery_pages
from skindx.data.publish.gallery_pages import (
    MARK,
    PER_PAGE,
    PagedTiles,
    dataset_of,
    near_numbers,
    web,
    write_gallery,
    write_pages,
)
from skindx.data.publish.gallery_tiles import Tile, Tiles

ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "nav", "ul", "li", "a"),
    *("h1", "h2", "p", "details", "summary", "bdi", "span", "div", "img", "dl", "dt", "dd", "code"),
    *("table", "thead", "tbody", "tr", "th", "td", "pre"),
}


class Page(HTMLParser):
    """What a browser would make of a page: elements, attributes, words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str, attribute: str) -> list[str | None]:
        return [each.get(attribute) for name, each in self.elements if name == tag]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gallery_dataset(tmp_path_factory.mktemp("gallery") / "data")


@pytest.fixture(scope="module")
def gallery(dataset: Path) -> Path:
    return write_gallery(dataset, dataset / "gallery").parent


@pytest.fixture(scope="module")
def pages(gallery: Path) -> dict[str, Page]:
    return {path.name: Page(path.read_text("utf-8")) for path in gallery.glob("*.html")}


def test_strangers_words_stay_words(gallery: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert page.open == [], name
        for tag, attributes in page.elements:
            assert tag in ALLOWED, (name, tag)
            assert not [key for key in attributes if key.startswith("on")], name
        for target in [*page.all("a", "href"), *page.all("img", "src")]:
            assert target is not None
            local = re.fullmatch(
                r"[a-z]+(-\d+-\d+-\d+)?\.html|thumbs/../[0-9a-f]{64}\.jpg|#main", target
            )
            assert local or target.startswith("http://atlas.example/"), target
            if local and target != "#main":
                assert (gallery / target).is_file()
        said = "".join(page.words)
        assert "49" not in re.findall(r"\b49\b", said)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", said)
    whole = "".join(pages["kept-0-0-1.html"].words)
    for words in HOSTILE[:4]:
        assert whole.count(words) >= 4


def test_every_image_is_in_its_view_once_and_under_its_filters(
    dataset: Path, pages: dict[str, Page]
) -> None:
    records = read_manifest(dataset)
    shown = pages["kept-0-0-1.html"].all("img", "src")
    assert shown == [f"thumbs/{r.sha256[:2]}/{r.sha256}.jpg" for r in records]
    words = "".join(pages["dropped-0-0-1.html"].words)
    for issue in read_issues(dataset):
        assert issue.url in words
    reported = "".join(pages["index.html"].words)
    assert "found under several names or labels is shown once" in reported
    filtered = [
        name for name in pages if name.startswith("kept-0-") and not name.startswith("kept-0-0")
    ]
    under = [src for name in filtered for src in pages[name].all("img", "src")]
    assert sorted(map(str, under)) == sorted(map(str, shown)), "each in one split"


def test_a_duplicate_stands_beside_what_stays_and_a_conflict_has_both_labels(
    dataset: Path, gallery: Path
) -> None:
    text = (gallery / "dropped-0-0-1.html").read_text("utf-8")
    tiles = re.findall(r'<li class="tile.*?</li>', text, re.DOTALL)
    (pair,) = [tile for tile in tiles if "near-duplicate" in tile]
    kept = read_manifest(dataset)[0].sha256
    assert len(re.findall("<img", pair)) == 2
    assert kept in pair
    assert ">dropped<" in pair
    assert ">stays<" in pair
    (conflict,) = [tile for tile in tiles if "conflicting-duplicate" in tile]
    words = "".join(Page(f"<ul>{conflict}</ul>").words)
    assert re.search(r"acne\s+or\s+wart", words)
    assert "a.jpg" in words
    assert "b.jpg" in words
    (damaged,) = [tile for tile in tiles if ">damaged<" in tile]
    assert "cannot be shown" in damaged
    (dead,) = [tile for tile in tiles if "dead-link" in tile]
    assert "nothing was stored" in dead


def test_what_waits_for_a_decision_is_counted_and_what_is_decided_told(gallery: Path) -> None:
    assert "2 flagged images wait for a decision" in (gallery / "index.html").read_text("utf-8")
    assert "withhold by &lt;b&gt;me&lt;/b&gt;" in (gallery / "kept-0-0-1.html").read_text("utf-8")


def test_thumbnails_are_small_and_bear_no_metadata(gallery: Path, dataset: Path) -> None:
    files = list((gallery / "thumbs").rglob("*.jpg"))
    assert len(files) == len(read_manifest(dataset)) + 2
    for file in files:
        data = file.read_bytes()
        assert b"Exif" not in data
        assert b"taken at home" not in data
        with Image.open(io.BytesIO(data)) as image:
            assert max(image.size) <= 192
            assert not image.getexif()


def test_pages_hold_at_most_200_and_miss_nobody() -> None:
    tiles = [Tile(f"{n}", (f"class {n % 3}",), ("train",), (), ()) for n in range(2 * PER_PAGE + 1)]
    shelf = PagedTiles("kept", tiles)
    pages = [page for page in shelf.pages() if page[:2] == ("", "")]
    assert [(number, count) for _, _, number, count in pages] == [(1, 3), (2, 3), (3, 3)]
    names = [shelf.page(label, facet, number) for label, facet, number, _ in shelf.pages()]
    assert len(set(names)) == len(names)
    assert shelf.page("class 1", "val") == ""


def test_a_second_gallery_takes_the_place_of_the_first(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "gallery"
    write_gallery(dataset, out)
    assert dataset_of(out) == dataset.resolve()
    gone = read_manifest(dataset)[3]
    left = tmp_path / "gallery.tmp-killed" / "thumbs"
    left.mkdir(parents=True)
    (left / f"{gone.sha256}.jpg").touch()
    first = {file: file.stat().st_ino for file in out.rglob("*.jpg")}
    write_gallery(dataset, out)
    assert {file: file.stat().st_ino for file in out.rglob("*.jpg")} == first, "taken over"
    assert [path.name for path in tmp_path.iterdir()] == ["gallery"]


def test_folders_of_others_are_left_alone(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds other files"):
        write_gallery(dataset, tmp_path)
    (tmp_path / MARK).write_text(json.dumps({"x": 1}))
    with pytest.raises(UserError, match="holds other files"):
        write_gallery(dataset, tmp_path)
    (tmp_path / "thesis.tex").unlink()
    with pytest.raises(UserError, match="is no gallery"):
        write_gallery(dataset, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [MARK]
    with pytest.raises(UserError, match="is no dataset"):
        write_gallery(tmp_path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("url", "linked"),
    [
        ("http://a.example/1.jpg", True),
        ("https://a.example/?q=<b>", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("file:///etc/passwd", False),
        ("http:///no-host", False),
        ("http://[bad", False),
        ("folder/1.jpg", False),
    ],
)
def test_only_web_addresses_become_links(url: str, linked: bool) -> None:
    assert web(url) == (url if linked else "")


def test_classes_of_which_nothing_is_kept_stand_on_top(pages: dict[str, Page]) -> None:
    said = " ".join(" ".join(pages["index.html"].words).split())
    funnel = said[said.index("From sources to the dataset") :]
    assert "class named fetched screened distinct kept not kept" in funnel
    assert funnel.index(HOSTILE[1]) < funnel.index("acne 9 8 7 6 6")
    assert f"40 40 0 0 0 30 damaged, 10 {HOSTILE[0]}" in funnel


def test_what_became_of_the_box_file_stands_on_the_overview(pages: dict[str, Page]) -> None:
    said = " ".join(" ".join(pages["index.html"].words).split())
    assert f"box file {HOSTILE[0]}: 7 of 9 images that it names are in the dataset" in said
    assert f"refused 2: the dataset has no such image, such as {HOSTILE[1]}, b.jpg." in said


def test_a_summary_without_a_funnel_or_with_a_strange_one(dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy", ignore=shutil.ignore_patterns("gallery"))
    (copy / "summary.json").write_text('{"name": "old"}')
    index = write_gallery(copy, tmp_path / "pages")
    assert "From sources to the dataset" not in index.read_text("utf-8")
    odd = ("[]", '{"funnel": [7]}', '{"funnel": [{"label": "a"}]}', "{", '{"boxes": {"file": 3}}')
    for broken in odd:
        (copy / "summary.json").write_text(broken)
        with pytest.raises(UserError, match=r"summary\.json cannot be read"):
            write_gallery(copy, tmp_path / "pages")


def many_classes(folder: Path, count: int) -> dict[str, Page]:
    """Write the pages of `count` classes of two images each; return them by name."""
    folder.mkdir()
    kept = [
        Tile(f"{n:064x}", (f"class {n % count}",), (("train", "val")[n // count],), (), ())
        for n in range(2 * count)
    ]
    # The same bytes under all labels and addresses, for as many reasons.
    labels = tuple(f"class {n}" for n in range(count))
    urls = tuple(f"http://a.example/{n}.jpg" for n in range(count))
    reasons = tuple(f"reason {n}" for n in range(count))
    dropped = [Tile("", labels, ("conflicting-duplicate",), urls, ())]
    dropped += [
        Tile("", ("class 0",), (reason,), ("http://a.example/x.jpg",), ()) for reason in reasons
    ]
    write_pages(
        folder,
        Tiles("many", {"kept": kept, "dropped": dropped}, {}),
        (),
    )
    return {path.name: Page(path.read_text("utf-8")) for path in folder.iterdir()}


def test_pages_grow_with_the_classes_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_pages, "MOST_CHOICES", 6)
    monkeypatch.setattr(gallery_pages, "MOST_SHOWN", 3)
    few, many = (many_classes(tmp_path / str(count), count) for count in (8, 24))
    work = [sum(len(page.elements) for page in pages.values()) for pages in (few, many)]
    assert work[1] < 3.3 * work[0]
    for name, page in many.items():
        assert page.open == [], name
        for target in page.all("a", "href"):
            local = target and not target.startswith(("#", "http:"))
            assert not local or target in many, (name, target)
    # Every page is reached from the first by links.
    reached, waiting = {"index.html"}, ["index.html"]
    while waiting:
        linked = {target for target in many[waiting.pop()].all("a", "href") if target in many}
        waiting += linked - reached
        reached |= linked
    assert reached == many.keys()
    assert "and 21 more" in "".join(many["dropped-0-1-1.html"].words)


@pytest.mark.parametrize(
    ("number", "count", "expected"),
    [(1, 1, [1]), (1, 5, [1, 2, 3, 4, 5]), (5, 9, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
     (6, 11, [1, 0, 3, 4, 5, 6, 7, 8, 9, 0, 11]), (1, 9999, [1, 2, 3, 4, 0, 9999])],
)  # fmt: skip
def test_a_page_of_many_links_to_the_ends_and_those_beside_it(
    number: int, count: int, expected: list[int]
) -> None:
    assert near_numbers(number, count) == expected
