"""Many photos on the page, in a real chromium over made-up answers."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from painted_answers import jpeg
from windows import PHONE, Painted, Seen, reported

from skindx.texts.catalogue import text
from skindx.ui.http.answer_rows import AT_A_TIME, COLUMNS

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.browser
Opened = Callable[..., Seen]
Photos = dict[str, Path]

FINISHED = "document.querySelector('.sx-many-step').textContent.startsWith('{0} of {0}')"


def start(page: "Page", files: list[Path]) -> None:
    page.click(".sx-many summary")
    page.set_input_files(".sx-many-files", files)
    page.click(".sx-many-go")


def test_many_photos_are_answered_urgent_ones_first_and_saved(
    opened: Opened, painted: Painted, photos: Photos, tmp_path: Path,
    axe: Callable[["Page"], list[dict[str, Any]]],
) -> None:  # fmt: skip
    page = opened().page
    kept = set(painted.uploads)  # of tests before this one, whose tabs are still open
    other = tmp_path / "notes.txt"
    other.write_text("notes")
    odd = tmp_path / "=<img src=x>.jpg"
    odd.write_bytes(jpeg(80, 60))
    names = ["routine", "soon", "blurred", "urgent", "unknown"]
    start(page, [*(photos[name] for name in names), odd, other])
    page.wait_for_function(FINISHED.format(6))
    assert "1 other file is left out" in page.inner_text(".sx-many-chosen")
    kinds = [row.get_attribute("data-kind") for row in page.locator(".sx-many-row").all()]
    assert kinds == ["urgent", "soon", "soon", "unknown", "routine", "refused"]
    assert page.locator(".sx-many-row canvas").count() == 6
    assert page.locator(".sx-many-row img").count() == 0
    page.select_option(".sx-many-which", "urgent")
    assert page.locator(".sx-many-row:visible").count() == 1
    with page.expect_download() as saved:
        page.click(".sx-many-save")
    with Path(saved.value.path()).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["file"] for row in rows] == [
        "'=<img src=x>.jpg", *(f"{name}.jpg" for name in sorted(names))
    ]  # fmt: skip
    assert set(painted.uploads) <= kept  # nothing is kept
    page.emulate_media(media="print")  # the list, without what asks for photos
    assert page.is_visible(".sx-many-row")
    assert not page.is_visible(".sx-form")
    page.emulate_media(media="screen")
    findings = axe(page)
    assert findings == [], reported(findings)


def test_a_person_says_how_a_refused_photo_of_many_was_taken(
    opened: Opened, photos: Photos, axe: Callable[["Page"], list[dict[str, Any]]]
) -> None:
    page = opened(**PHONE).page
    start(page, [photos[name] for name in ("close", "blurred", "routine")])
    page.wait_for_function(FINISHED.format(3))
    say = page.locator(".sx-many-row .sx-say")
    assert say.all_inner_texts() == [text("said_dermoscopic_do")]  # of no other refusal
    described = page.locator(f"#{say.get_attribute('aria-describedby')}")
    assert text("said_hazard_dermoscopic") in described.inner_text()
    page.select_option(".sx-many-which", "refused")
    say.click()
    row = page.locator(".sx-many-row[data-kind=urgent]")
    row.wait_for()  # the list shows all again, or the answer would not be seen
    assert row.evaluate("one => one === document.activeElement")
    assert row.inner_text().count("close.jpg") == 1
    warning = "A person said that photo 1 was taken through a dermatoscope"
    assert row.locator("p").nth(1).inner_text().startswith(warning)
    assert row.inner_text().count(warning) == 1
    kinds = [one.get_attribute("data-kind") for one in page.locator(".sx-many-row").all()]
    assert kinds == ["urgent", "routine", "refused"]
    assert page.locator(".sx-many-row canvas").count() == 3
    with page.expect_download() as saved:
        page.click(".sx-many-save")
    with Path(saved.value.path()).open(encoding="utf-8", newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["blurred.jpg", "close.jpg", "routine.jpg"]
    assert rows["close.jpg"]["remarks"].startswith(warning)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    findings = axe(page)
    assert findings == [], reported(findings)


def test_a_busy_server_is_waited_for_and_a_lost_one_leaves_what_is_there(
    opened: Opened, photos: Photos, tmp_path: Path
) -> None:
    seen = opened(**PHONE)
    page, asked = seen.page, []

    def once(route: "Route") -> None:
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(status=503, headers={"retry-after": "1"}, json={"error": "Busy."})
        elif len(asked) > AT_A_TIME + 1:
            route.fulfill(status=400, json={"error": "Broken."})
        else:
            route.continue_()

    page.route("**/answer-row", once)
    files = [photos[name] for name in ("urgent", "soon", "routine", "unknown")]
    page.evaluate("window.setTimeout = ((late) => (f, ms) => late(f, ms / 20))(window.setTimeout)")
    start(page, files)
    page.wait_for_selector(".sx-many-problem:not(:empty)")
    page.wait_for_selector(".sx-many-go:visible")
    assert page.inner_text(".sx-many-go") == "Go on"
    assert "Broken. Go on when it works again" in page.inner_text(".sx-many-problem")
    assert page.locator(".sx-many-row").count() == AT_A_TIME
    page.unroute("**/answer-row")
    page.click(".sx-many-go")
    page.wait_for_function(FINISHED.format(4))
    assert page.locator(".sx-many-row").count() == 4
    assert page.inner_text(".sx-many-problem") == ""
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    seen.errors.clear()  # the browser reports the refusals that were made up


def test_too_many_photos_and_none_are_refused_at_once(
    opened: Opened, tmp_path: Path, photos: Photos
) -> None:
    page = opened().page
    page.click(".sx-many summary")
    (tmp_path / "a.txt").write_text("x")
    page.set_input_files(".sx-many-files", tmp_path / "a.txt")
    assert "no photo among these files" in page.inner_text(".sx-many-problem")
    many = [tmp_path / f"{n}.jpg" for n in range(1001)]
    for file in many:
        file.touch()
    page.set_input_files(".sx-many-files", many)
    assert page.inner_text(".sx-many-problem").startswith(
        "1,001 photos are too many, so choose at most 1,000"
    )
    assert not page.is_visible(".sx-many-go")
