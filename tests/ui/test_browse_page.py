"""The page to browse a dataset, and the report of one, in a real chromium."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
from paint_images import encode, paint
from review_server import review_of
from small_dataset import SmallDataset, free_dataset
from windows import PHONE, Windows

from skindx.data.layout import SUMMARY, TAXONOMY
from skindx.data.manifest import SPLITS, Issue
from skindx.data.report.dataset_report import write_report
from skindx.taxonomy import SkinClass, Taxonomy

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
Axe = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve 130 images: 65 a class, so three pages in all and two a class."""
    folder = tmp_path_factory.mktemp("browse")
    small = SmallDataset(folder / "data")
    for number in range(130):
        small.add(
            encode(paint(number)),
            group=f"{HOSTILE}{number // 2}",
            source_url=f"pictures/IMG_{number:03d}{HOSTILE}.jpg",
            source=("one", HOSTILE)[number % 4 == 0],
            split=SPLITS[number % 4],
        )
    small.write()
    classes = [SkinClass(key="Acne", name=HOSTILE), SkinClass(key="Eczema", name="Eczema")]
    Taxonomy(name="t", title="T", classes=tuple(classes)).save(small.folder / TAXONOMY)
    with review_of(folder, "--by", "Dr. Mole") as url:
        yield url


@pytest.fixture
def page(browser: "Browser", windows: Windows, served: str) -> "Iterator[Page]":
    page = windows.open(served)
    errors, hosts = list[str](), set[str]()
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(served + "browse")
    page.locator("#grid button").first.wait_for()
    yield page
    assert page.title() != "owned"
    windows.close()
    assert errors == []
    assert hosts - {""} == {urlsplit(served).netloc}


def _says(page: "Page", text: str) -> None:
    page.locator("#count", has_text=text).wait_for()


def _until(page: "Page", holds: Callable[[], bool]) -> None:
    """Wait until something holds; the page's policy lets no string be evaluated in it."""
    for _ in range(300):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come to hold in 15 s")


def test_only_who_knows_the_secret_finds_images(served: str) -> None:
    parts = urlsplit(served)
    for path in ("/find", "/browse", "/x/find", "/x/browse.js"):
        assert httpx.get(f"http://{parts.netloc}{path}").status_code == 404, path
    page = httpx.get(served + "browse")
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for path in ("browse", "find"):
        answer = httpx.get(served + path, headers={"host": "evil.example"})
        assert answer.status_code == 421
    found = httpx.get(served + "find?text=img_00&page=0")
    assert (found.status_code, found.headers["cache-control"]) == (200, "no-store")
    assert found.json()["images"] == 10
    assert httpx.post(served + "find").status_code == 404


@pytest.mark.parametrize(
    "query",
    ["label=x", "label=-1", "page=-1", f"page={10**12}", "path=/etc", "text=" + "a" * 201, "%ff=1",
     "&".join(f"a{n}=1" for n in range(99)), "text=%ff"],
)  # fmt: skip
def test_what_no_page_of_ours_asks_is_one_sentence(served: str, query: str) -> None:
    answer = httpx.get(f"{served}find?{query}")
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_filters_search_and_pages(page: "Page", served: str) -> None:
    _says(page, "130 images in 65 groups.")
    assert page.locator("#grid button").count() == 60
    assert page.inner_text("#of") == "of 3"
    page.keyboard.press("n")
    page.locator("#after:not([disabled])").wait_for()
    _until(page, lambda: page.input_value("#page") == "2")
    assert page.evaluate("document.activeElement.closest('#grid') !== null")
    page.keyboard.press("p")
    _until(page, lambda: page.input_value("#page") == "1")

    page.select_option("#label", label="Eczema (65)")
    _says(page, "65 of 130 images in 65 groups.")
    page.select_option("#split", label="test (32)")
    _says(page, "32 of 130 images")
    page.focus("#split")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") != "text", "in a choice a letter chooses"
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("IMG_00")
    _says(page, "2 of 130 images in 2 groups.")
    files = page.locator("#grid .why:last-child").all_inner_texts()
    assert files == [f"IMG_{number:03d}{HOSTILE}.jpg"[-80:] for number in (3, 7)]
    page.reload()
    _says(page, "2 of 130 images in 2 groups.")
    assert page.input_value("#text") == "IMG_00"
    page.fill("#text", "no such")
    _says(page, "No image fits.")
    page.click("#clear")
    _says(page, "130 images in 65 groups.")
    page.fill("#page", "99")
    page.keyboard.press("Enter")
    _until(page, lambda: page.input_value("#page") == "3")


def test_an_image_opens_and_leads_to_its_review(page: "Page") -> None:
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.locator("#image-dialog[open] dd").first.wait_for()
    assert page.inner_text("#title") == f"2 of 130: {HOSTILE}"
    facts = dict(
        zip(
            page.locator("#facts dt").all_inner_texts(),
            page.locator("#facts dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["size"] == "120 × 96"
    assert facts["group"].startswith(HOSTILE)
    # Keys that are pressed while the next page is on its way are steps too.
    page.route("**/find?*", lambda route: (time.sleep(0.2), route.continue_()))
    for _ in range(60):
        page.keyboard.press("ArrowRight")
    page.locator("#title", has_text="62 of 130").wait_for()
    page.unroute("**/find?*")
    page.keyboard.press("Escape")
    page.locator("#image-dialog[open]").wait_for(state="detached")
    assert page.evaluate("document.activeElement.closest('#grid') !== null")
    page.keyboard.press("Enter")
    page.locator("#image-dialog[open] dd").first.wait_for()
    shown = page.locator("#facts dd").all_inner_texts()
    page.click("#decide")
    page.locator("#answers button", has_text="Keep").wait_for()
    page.locator("#facts dd").first.wait_for()
    assert shown[-1] in page.locator("#facts dd").all_inner_texts(), "the same hash"
    page.click("text=Browse")
    page.locator("#grid button").first.wait_for()


def test_everybody_can_browse(page: "Page", axe: Axe) -> None:
    assert axe(page, themed=False) == []
    page.locator("#grid button").first.click()
    page.locator("#image-dialog[open] dd").first.wait_for()
    assert axe(page, themed=False) == []


def test_a_phone_needs_no_scrolling_sideways(
    browser: "Browser", windows: Windows, served: str
) -> None:
    page = windows.open(served, **PHONE)
    page.goto(served + "browse")
    page.locator("#grid button").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#grid button").first.click()
    page.locator("#image-dialog[open] dd").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    windows.close()


def test_what_a_person_withholds_leaves_the_report(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data", 4)
    report = write_report(small.write())
    assert report.read_text().count("<img") == 4
    with review_of(tmp_path) as url:
        answer = {"at": 0, "by": "me", "revision": 0, "verdict": "withhold"}
        assert httpx.post(url + "answer", json=answer).status_code == 200
    assert report.read_text().count("<img") == 3


def test_a_report_asks_for_nothing_and_fits_screen_and_paper(
    browser: "Browser", tmp_path: Path, axe: Axe
) -> None:
    small = free_dataset(tmp_path / "data")
    small.issues = [Issue("https://x.example/" + "long" * 200, "", HOSTILE, "dead-link", HOSTILE)]
    small.add(source_url=f"javascript:{HOSTILE}", site=HOSTILE, licence=HOSTILE)
    (small.write() / SUMMARY).write_text('{"name": "' + "long" * 30 + '", "notes": ["`a` & b"]}')
    report = write_report(small.folder)
    page = browser.new_page(**PHONE)
    asked, errors = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.goto(report.as_uri())
    page.wait_for_load_state("networkidle")
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    assert errors == []
    assert page.title().startswith("Dataset long")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("[...document.images].every((one) => one.naturalWidth > 0)")
    assert axe(page, themed=False) == []
    paper = page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    assert 1 <= paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page/") <= 6
    page.close()
