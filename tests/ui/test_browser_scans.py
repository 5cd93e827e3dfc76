"""A wide photo on the page in a real chromium: the offer, the scan, what it found, the case book.

Scans are real, with a queue and worker processes; the detector finds dark spots.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from painted_answers import FAR, WIDE
from painted_rulers import Painted as PaintedRuler
from painted_rulers import paint_ruler
from spots import photo_with, save
from windows import PHONE, Painted, Seen, reported

from skindx.casebook.casebook import Casebook

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
Opened = Callable[..., Seen]

SPOTS = [(100 + 120 * x, 90 + 140 * y, 9 + 2 * (x + y)) for x in range(6) for y in range(3)]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = photo_with([(float(x), float(y), float(r)) for x, y, r in SPOTS], WIDE, 500)
    return save(pixels, tmp_path_factory.mktemp("wide") / "Eve from behind.png")


@pytest.fixture(scope="module")
def kept_scans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from scan_folders import visits_of

    return visits_of(tmp_path_factory.mktemp("visits"))


def diagnose(page: "Page", photo: Path) -> None:
    page.set_input_files("#sx-file", photo)
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")


def kept_files(painted: Painted) -> list[Path]:
    return [path for path in painted.folder.glob("skindx-scans-*/**/*") if path.is_file()]


def fits(page: "Page") -> bool:
    shown = "document.documentElement"
    return bool(page.evaluate(f"{shown}.scrollWidth <= {shown}.clientWidth"))


def test_a_close_up_is_offered_no_scan(
    opened: Opened, painted: Painted, photos: dict[str, Path]
) -> None:
    page = opened().page
    diagnose(page, photos["good"])
    assert page.locator(".sx-scan").count() == 0
    assert kept_files(painted) == []


def test_a_wide_photo_is_scanned_and_what_was_found_is_listed_and_deleted(
    opened: Opened,
    painted: Painted,
    wide: Path,
    axe: "Callable[[Page], list[dict[str, Any]]]",
) -> None:
    page = opened("eve").page
    diagnose(page, wide)
    offer = page.locator(".sx-scan")
    assert "4 lesions that are small against it" in offer.inner_text()
    # A wrong scale is one sentence, and nothing is begun.
    page.fill("[name=scale_mm_per_pixel]", "tiny")
    page.click(".sx-scan-form button")
    page.wait_for_selector(".sx-scan .sx-refusal:has-text('no number above 0')")
    page.fill("[name=scale_mm_per_pixel]", "0,1")
    page.focus(".sx-scan-form button")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sx-scan-work:not([hidden])")
    page.wait_for_selector(".sx-scanned")
    assert page.locator(".sx-scan-view rect.sx-edge").count() == len(SPOTS)
    rows = page.locator(".sx-scan-lesions li")
    assert rows.count() == 12
    assert "mm" in rows.first.inner_text()
    said = page.inner_text(".sx-scanned")
    assert "no diagnosis" in said
    assert "was not measured for this bundle" in said
    assert page.evaluate("document.activeElement.className") == "sx-scanned"
    assert fits(page)
    assert axe(page) == [], reported(axe(page))
    # The photo is gone; nothing names its file.
    assert [path.name for path in kept_files(painted) if path.parent.name == "photos"] == []
    assert "Eve from behind" not in page.inner_html(".sx-scan")
    # It is kept with consent alone.
    page.click(".sx-scan-keep summary")
    page.click(".sx-scan-keep .sx-primary")
    said = page.locator(".sx-scan-keep .sx-lacks").all_inner_texts()
    assert said[:2] == [
        "The pseudonym is missing, so fill it in.",
        "The view is missing, so fill it in.",
    ]
    page.fill(".sx-scan-keep [name=patient]", "P-017")
    page.fill(".sx-scan-keep [name=view]", "back")
    page.check(".sx-scan-keep [name=consent]")
    page.click(".sx-scan-keep .sx-primary")
    page.wait_for_selector("text=Kept in the case book under P-017, back.")
    (kept,) = Casebook.open(painted.book).scans.scans("eve")
    assert kept.lesions == len(SPOTS)
    # The whole result is a page of its own that runs under the server's policy.
    with page.context.expect_page() as second:
        page.click("[data-scan-page]")
    whole = second.value
    whole.wait_for_selector(".lesions")
    whole.keyboard.press("ArrowDown")
    whole.wait_for_selector("tr.chosen")
    assert whole.locator(".lesions tbody tr").count() == len(SPOTS)
    page.set_viewport_size({"width": 390, "height": 844})
    assert fits(page)
    page.click(".sx-scan-after [data-scan-delete]")
    page.wait_for_selector(".sx-scan-form:not([hidden])")
    page.wait_for_timeout(500)
    assert kept_files(painted) == []
    whole.reload()
    assert "There is no scan of this id" in whole.content()
    whole.close()


def test_a_ruler_is_used_only_after_a_person_confirmed_it(
    opened: Opened,
    painted: Painted,
    wide: Path,
    tmp_path: Path,
    axe: "Callable[[Page], list[dict[str, Any]]]",
) -> None:
    seen = opened("eve")
    page = seen.page
    how = PaintedRuler(ticks=45, size_wh=(WIDE, 600))
    diagnose(page, save(paint_ruler(how)[0], tmp_path / "ruler.png"))
    scale = page.locator("[name=scale_mm_per_pixel]")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.click("[data-ruler-find]")
        page.wait_for_selector(".sx-scan-ruler:not([hidden]) img[src^='data:image/jpeg']")
        assert "divided in millimetres" in page.inner_text(".sx-ruler-said")
        assert page.evaluate("document.querySelector('.sx-scan-ruler img').naturalWidth") > 300
        assert page.evaluate("document.activeElement.className") == "sx-scan-ruler"
        assert fits(page)
        if width == 1280:  # a ruler that does not fit changes nothing
            page.click("[data-ruler-no]")
            page.wait_for_selector(".sx-live:has-text('The ruler is not used')")
            assert scale.input_value() == ""
            assert page.locator(".sx-scan-ruler:visible").count() == 0
    assert axe(page) == [], reported(axe(page))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sx-live:has-text('mm by the ruler')")
    assert abs(float(scale.input_value()) * how.period - 1) < 0.01
    assert kept_files(painted) == []
    # A photo without one: a sentence, and the scan goes on without.
    page.click("[data-again]")
    page.wait_for_selector(".sx-follow", state="detached")
    diagnose(page, wide)
    page.click("[data-ruler-find]")
    page.wait_for_selector(".sx-live:has-text('at least two centimetres in focus')")
    assert scale.input_value() == ""
    # Chromium says so on its console; the page has said it in words.
    assert "422" in seen.errors.pop()


def test_scans_are_kept_with_consent_shown_compared_and_deleted(
    opened: Opened,
    painted: Painted,
    kept_scans: tuple[Path, Path],
    axe: "Callable[[Page], list[dict[str, Any]]]",
) -> None:
    book = Casebook.open(painted.book)
    for folder in kept_scans:
        book.scans.keep("fay", folder, patient="P-9", view="back", consent=True, compare=True)
    page = opened("fay").page
    page.click("button[role=tab]:has-text('Case book')")
    page.click(".sx-lesion:has-text('2 scans, last')")
    page.wait_for_selector(".sx-kept-scan")
    page.click("text=Compare the scans")
    page.wait_for_selector(".sx-compared")
    inner = page.frame_locator(".sx-compared")
    assert "grown" in inner.locator("h1").inner_text()
    assert fits(page)
    assert axe(page) == [], reported(axe(page))
    page.set_viewport_size({"width": 390, "height": 844})
    assert fits(page)
    page.click(".sx-kept-scan summary")
    page.click("[data-ask]")
    page.click("dialog[open] .sx-danger")
    page.wait_for_selector("text=The scan, its photos and its lesions are deleted.")
    assert len(book.scans.scans("fay")) == 1


def test_a_scan_that_is_stopped_or_left_leaves_nothing(
    opened: Opened, painted: Painted, wide: Path, tmp_path: Path
) -> None:
    page = opened("eve", **PHONE).page
    # A wide photo that is refused as a whole is offered the scan too.
    far = tmp_path / "far.png"
    save(photo_with([(100, 100, 20)], FAR, 500), far)
    page.set_input_files("#sx-file", far)
    page.click(".sx-ask")
    page.wait_for_selector(".sx-scan:has-text('As a whole it cannot be judged')")
    assert page.locator(".sx-photo .sx-refusal").count() == 1
    page.click("[aria-label='Remove photo 1']")
    diagnose(page, wide)
    page.click(".sx-scan-form button")
    page.click(".sx-scan-work [data-scan-delete]")
    page.wait_for_selector(".sx-scan-form:not([hidden])")
    page.click(".sx-scan-form button")
    page.wait_for_selector(".sx-scan-work:not([hidden])")
    assert fits(page)
    page.click("[data-again]")
    page.wait_for_selector(".sx-waiting", state="attached")
    assert page.locator(".sx-scan").count() == 0
    page.wait_for_timeout(1000)
    assert kept_files(painted) == []
