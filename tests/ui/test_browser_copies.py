"""The page of pairs in a real chromium: by keyboard, on a phone, for everybody."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from annotating import annotating
from copies_of_three import three_images

from skindx.data.copies.copy_records import Pair, read_answers

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Pair]]:
    folder = tmp_path_factory.mktemp("copies") / "data"
    return folder, three_images(folder)


@pytest.fixture(scope="module")
def url(dataset: tuple[Path, list[Pair]]) -> Iterator[str]:
    folder = dataset[0]
    with annotating("serve_copies", folder.parent, folder, "me") as (url, lines):
        yield url
    assert "of 2 pairs" in lines[1]


@pytest.fixture
def page(browser: "Browser", url: str) -> "Iterator[Page]":
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    _says(page, "Pair 1 of 2")
    yield page
    context.close()
    assert errors == []


def _says(page: "Page", text: str) -> None:
    page.locator("#sx-message", has_text=text).wait_for()


def test_a_person_answers_by_keyboard(page: "Page", dataset: tuple[Path, list[Pair]]) -> None:
    folder, pairs = dataset
    _says(page, "uncertain, not answered yet")
    page.wait_for_function("document.querySelector('#sx-pair img').naturalWidth > 0")
    page.keyboard.press("d")
    _says(page, "Saved: different. Pair 2 of 2: verified")
    assert read_answers(folder)[pairs[0]].verdict == "different"
    page.keyboard.press("s")
    _says(page, "Saved: same.")
    assert read_answers(folder)[pairs[1]].verdict == "same"
    page.keyboard.press("u")
    _says(page, "Undone.")
    page.keyboard.press("b")
    _says(page, "Pair 1 of 2: answered: different")
    page.keyboard.press("u")
    _says(page, "Undone.")
    assert read_answers(folder) == {}


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_nothing_sticks_out_of_the_window(
    browser: "Browser", url: str, width: int, height: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.goto(url)
    _says(page, "Pair 1 of 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for button in page.locator("#sx-buttons button").all():
        place = button.bounding_box()
        assert place is not None
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= width
    context.close()


def test_no_serious_barrier_for_anybody(
    page: "Page", axe: "Callable[[Page], list[dict[str, Any]]]"
) -> None:
    assert axe(page) == []
