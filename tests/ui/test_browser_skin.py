"""The page of flagged images in a real chromium: by keyboard, on a phone, for everybody."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from annotating import annotating
from flagged_images import flagged_images

from skindx.data.decisions import read_skin_answers

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("skin") / "data"
    return folder, flagged_images(folder)


@pytest.fixture(scope="module")
def url(dataset: tuple[Path, list[str]]) -> Iterator[str]:
    folder = dataset[0]
    with annotating("serve_skin", folder.parent, folder, "me") as (url, lines):
        yield url
    assert "of 3 flagged images" in lines[1]


def _says(page: "Page", text: str) -> None:
    page.locator("#sx-message", has_text=text).wait_for()


def test_a_person_answers_by_keyboard_and_nothing_bars_anybody(
    browser: "Browser",
    url: str,
    dataset: tuple[Path, list[str]],
    axe: "Callable[[Page], list[dict[str, Any]]]",
) -> None:
    folder, (first, second, _) = dataset
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    _says(page, "Image 1 of 3: not answered yet")
    page.wait_for_function("document.querySelector('#sx-pair img').naturalWidth > 0")
    assert axe(page) == []
    page.keyboard.press("s")
    _says(page, "Saved: skin. Image 2 of 3")
    page.keyboard.press("n")
    _says(page, "Saved: not skin. Image 3 of 3, not in the dataset")
    answers = read_skin_answers(folder)
    assert (answers[first].verdict, answers[second].verdict) == ("skin", "not skin")
    page.keyboard.press("u")
    _says(page, "Undone. Image 2 of 3")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for button in page.locator("#sx-buttons button").all():
        place = button.bounding_box()
        assert place is not None
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= 390
    context.close()
    assert errors == []
    assert read_skin_answers(folder).keys() == {first}
