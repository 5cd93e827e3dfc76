"""The page of a scan in a real chromium: keys, filter, zoom, narrow windows, screen readers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from english_left import english_in
from painted_bodies import lesions_of, paint, scan_of
from whole_photo import ArrayPhoto

from skindx.scan.outputs.scan_pages import render_scan
from skindx.texts.catalogue import speaking

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

SIZE = (600, 800)
FOUND = lesions_of(14, size_wh=SIZE), lesions_of(6, 3, SIZE)
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def scan_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a scan; beside it lies the same in Spanish, es.html."""
    reads = [ArrayPhoto(paint(one, SIZE)) for one in FOUND]
    file = tmp_path_factory.mktemp("page") / "scan.html"
    for language, name in (("en", file.name), ("es", "es.html")):
        with speaking(language):
            html = render_scan(scan_of(*FOUND, size_wh=SIZE), reads)
        file.with_name(name).write_text(html, encoding="utf-8")
    return file


@pytest.fixture
def shown(browser: "Browser", scan_page: Path) -> Iterator[Open]:
    """Open the page; it may not err (a breach of its own policy would) nor ask anybody."""
    opened: list[tuple[Page, list[str]]] = []

    def show(width: int = 1280, name: str = "scan.html", **options: Any) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        page = context.new_page()
        errors: list[str] = []
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "request",
            lambda sent: (
                errors.append(sent.url[:80])
                if not sent.url.startswith(("file:", "data:"))
                else None
            ),
        )
        page.goto(scan_page.with_name(name).as_uri())
        opened.append((page, errors))
        return page

    yield show
    for page, errors in opened:
        page.context.close()
        assert errors == []


def chosen(page: "Page") -> str:
    ids: str = page.evaluate("[...document.querySelectorAll('tr.chosen')].map(r => r.id).join()")
    return ids


def view_box(page: "Page") -> list[float]:
    text: str = page.evaluate(
        "document.querySelector('figure:not([hidden]) svg').getAttribute('viewBox')"
    )
    return [float(value) for value in text.split()]


def test_keys_move_zoom_and_find(shown: Open) -> None:
    page = shown()
    page.keyboard.press("ArrowDown")
    assert chosen(page) == "lesion-1"
    assert page.evaluate("document.activeElement.id") == "lesion-1"
    near = view_box(page)
    assert near[2] < SIZE[0]
    box = page.get_attribute("#lesion-1", "data-box")
    assert box is not None
    x1, y1, x2, y2 = (float(value) for value in box.split())
    assert near[0] <= x1 < x2 <= near[0] + near[2]
    assert near[1] <= y1 < y2 <= near[1] + near[3]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert chosen(page) == "lesion-1"
    page.keyboard.press("-")
    assert view_box(page)[2] > near[2]
    page.keyboard.press("0")
    assert view_box(page) == [0, 0, *SIZE]
    page.keyboard.press("+")
    assert view_box(page)[2] < SIZE[0]
    page.keyboard.press("/")
    page.keyboard.type("melanoma")
    assert page.inner_text("#count").startswith("2 of")  # an ugly duckling on each photo
    page.keyboard.press("Escape")
    assert page.input_value("#filter") == ""
    page.select_option("#which", "urgent")
    assert page.locator(".lesions tbody tr:visible").count() == 2
    # Lesions that the filter hides are passed over, and their outlines fade.
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator(".out").count() > 0


@pytest.mark.parametrize("width", [390, 1280])
def test_a_spanish_page_counts_and_fits_in_spanish(shown: Open, width: int) -> None:
    page = shown(width, "es.html")
    assert page.locator("html").get_attribute("lang") == "es"
    page.fill("#filter", "melanoma")
    assert page.inner_text("#count").startswith("Se muestran 2 de ")
    assert english_in(page.inner_text("body").replace("demo", "")) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_mouse_and_the_photos(shown: Open) -> None:
    page = shown()
    page.click("text=Photo 2")
    assert page.locator("figure:visible").count() == 1
    mark = page.locator("figure:not([hidden]) svg a").last
    target = mark.get_attribute("href")
    mark.click()
    assert f"#{chosen(page)}" == target
    page.click("button[data-do=in]")
    page.click("button[data-do=in]")
    before = view_box(page)
    svg = page.locator("figure:not([hidden]) svg").bounding_box()
    assert svg is not None
    middle = svg["x"] + svg["width"] / 2, svg["y"] + svg["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 60, middle[1] + 40, steps=4)
    page.mouse.up()
    after = view_box(page)
    assert after[0] < before[0]
    assert after[1] < before[1]
    assert after[2] == pytest.approx(before[2])


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_is_wider_than_the_window_and_nobody_is_shut_out(
    shown: Open, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = shown(width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("ArrowDown")
    row = page.locator("#lesion-1").bounding_box()
    view = page.locator(".view").bounding_box()
    assert row is not None
    assert view is not None
    # The chosen row is on the screen, and not behind the photo that stays on top.
    assert 0 <= row["y"] <= 900 - 60
    if width == 390:
        assert row["y"] >= view["y"] + view["height"] - 1
    found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []


def test_without_a_script_it_is_a_table(shown: Open) -> None:
    page = shown(java_script_enabled=False)
    count = sum(len(found) for found in FOUND)
    assert page.locator(".lesions tbody tr:visible").count() == count
    assert page.locator("figure:visible").count() == 2
    assert page.locator("#filters:visible").count() == 0
    assert page.locator("figure svg a").count() == count
