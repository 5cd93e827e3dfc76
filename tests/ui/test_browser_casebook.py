"""The case book's tab in a real chromium: keep, compare, confirm, delete; each owner alone."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kept_cases import answer
from PIL import Image, ImageDraw, ImageFilter
from windows import Painted, Seen, reported

from skindx.casebook.casebook import Casebook

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

SIZES = (".sx-strip", ".sx-zoom-pair")
pytestmark = pytest.mark.browser
Opened = Callable[..., Seen]


def spotted(path: Path, box: tuple[int, int, int, int]) -> Path:
    """Write a photo of skin with one dark lesion."""
    skin = Image.new("RGB", (840, 600), (205, 160, 135))
    ImageDraw.Draw(skin).ellipse(box, fill=(95, 60, 50))
    skin.filter(ImageFilter.GaussianBlur(3)).save(path, quality=92)
    return path


def keep(page: "Page", photo: Path, lesion: str = "left arm", *, consent: bool = True) -> None:
    page.set_input_files("#sx-file", photo)
    page.click(".sx-ask")
    page.wait_for_selector(".sx-keep")
    page.click(".sx-keep summary")
    page.fill("[name=patient]", "P-017")
    page.fill("[name=lesion]", lesion)
    page.check("[name=compare]")
    if consent:
        page.check("[name=consent]")
    page.click(".sx-keep-form .sx-primary")


def _unsaved(page: "Page") -> bool:
    """Whether a note differs from what the server wrote."""
    notes = page.locator(".sx-seen [name=note]")
    return bool(notes.evaluate_all("all => all.some((one) => one.value !== one.defaultValue)"))


def open_book(page: "Page") -> None:
    page.click("button[role=tab]:has-text('Case book')")
    page.wait_for_selector(".sx-book")


def test_a_lesion_is_kept_compared_confirmed_and_deleted(
    opened: Opened,
    painted: Painted,
    photos: dict[str, Path],
    axe: "Callable[[Page], list[dict[str, Any]]]",
) -> None:
    page = opened("ann").page
    keep(page, photos["soon"], consent=False)
    assert page.locator(".sx-kept").count() == 0
    said = page.locator(".sx-lacks")
    assert said.inner_text() == "This box is not ticked, so tick it to go on."
    consent = page.locator("[name=consent]")
    assert consent.get_attribute("aria-describedby") == said.get_attribute("id")
    assert page.evaluate("document.activeElement.name") == "consent"
    consent.check()
    assert said.count() == 0
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book under P-017, left arm.")
    page.click(".sx-again")  # it is kept, so nothing is asked
    page.wait_for_selector(".sx-waiting")
    keep(page, photos["urgent"])
    page.wait_for_selector("text=Kept in the case book")
    open_book(page)
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen")
    assert page.locator(".sx-seen").count() == 2
    assert page.locator(".sx-seen img").count() == 2
    assert "2 cases, the last kept on" in page.locator(".sx-lesion").inner_text()
    # What makes a case urgent is named, however small its probability.
    for shown, case in zip(
        page.locator(".sx-seen").all(), Casebook.open(painted.book).all_cases("ann"), strict=True
    ):
        assert case.diagnosis.next_step.because in shown.inner_text()
        in_set = [candidate.name for candidate in case.diagnosis.candidates if candidate.in_set]
        assert shown.locator(".sx-name").all_inner_texts() == in_set
    findings = axe(page)
    assert findings == [], reported(findings)

    last = page.locator(".sx-seen").nth(1)
    last.locator("[name=label]").select_option("Melanoma")
    last.locator("[name=note]").fill("histology <b>done</b>")
    last.locator("button[value=confirm]").click()
    page.wait_for_selector("text=Give the name of the clinician")
    assert page.evaluate("document.activeElement.name") == "clinician"
    findings = axe(page)
    assert findings == [], reported(findings)
    page.locator(".sx-seen").nth(1).locator("[name=clinician]").fill("Dr A. Keller")
    page.locator(".sx-seen").nth(1).locator("button[value=confirm]").click()
    page.wait_for_selector("text=The note is saved")
    kept = Casebook.open(painted.book).all_cases("ann")
    assert [kept_case.confirmed for kept_case in kept] == ["", "Melanoma"]
    assert "<b>done" not in page.locator(".sx-book").inner_html()

    # What has not changed is no lost answer.
    shows = page.locator("button:has-text('Show side by side')")
    assert not shows.is_visible()  # the two stand so already
    page.locator(".sx-compare select").first.select_option(index=1)
    assert shows.is_visible()
    page.locator(".sx-compare select").first.select_option(index=0)
    page.click(".sx-lesion")
    page.wait_for_timeout(3000)
    assert page.locator(".sx-lost").count() == 0
    # Both notes are saved, although the reply to the first writes the form of the second anew.
    for number in (0, 1):
        page.locator(".sx-seen").nth(number).locator("[name=note]").fill(f"note {number}")
    answer = page.get_attribute("[data-answer]", "data-answer")
    page.click(".sx-lesion")
    page.click("[data-save]")
    page.wait_for_selector(f"[data-answer]:not([data-answer='{answer}'])", state="attached")
    while page.locator("dialog.sx-leaving[open]").count() or _unsaved(page):
        page.wait_for_timeout(20)
    notes = [kept_case.note for kept_case in Casebook.open(painted.book).all_cases("ann")]
    assert notes == ["note 0", "note 1"]
    last = page.locator(".sx-seen").nth(1)
    last.locator("[name=confirmed_by]").select_option("histopathology")
    last.locator("button[value=confirm]").click()
    page.wait_for_selector("text=It is confirmed by histopathology.")
    last = page.locator(".sx-seen").nth(1)
    last.locator("[name=label]").select_option("Nevus")
    assert last.locator("[name=confirmed_by]").input_value() == ""
    assert "choose its basis again" in last.inner_text()
    for answer in (
        "Keep Melanoma",
        "Escape",
        "Edit the note first",
        "Replace Melanoma with Nevus (mole)",
    ):
        last.locator("[name=label]").select_option("Nevus")
        last.locator("button[value=confirm]").click()
        asked = page.locator("dialog[data-now]")
        asked.wait_for(state="visible")
        by = "(Dr A. Keller)"
        assert (
            f"Replace Melanoma (C43.9), confirmed by histopathology {by}, with Nevus (mole), "
            f"basis not stated {by}?"
        ) in asked.inner_text()
        assert "The earlier entry stays in the history." in asked.inner_text()
        assert page.evaluate("document.activeElement.textContent") == "Keep Melanoma"
        findings = axe(page)
        assert findings == [], reported(findings)
        assert "Does this note still fit?" in asked.inner_text()
        replaces = asked.locator("button[value=overwrite]")
        if answer == replaces.inner_text():
            replaces.click()
            assert asked.is_visible()
            assert asked.locator(".sx-lacks").all_inner_texts() == [
                "The question “Does this note still fit?” has no answer, so choose one.",
                "The reason for the change is missing, so fill it in.",
            ]
            question = asked.locator("fieldset")
            assert question.get_attribute("aria-invalid") == "true"
            assert question.locator("legend + .sx-lacks").count() == 1  # above its answers
            assert page.evaluate("document.activeElement.value") == "keep"
            findings = axe(page)
            assert findings == [], reported(findings)
            asked.locator("[value=keep]").check()
            assert question.get_attribute("aria-invalid") is None
            replaces.click()
            assert asked.is_visible()  # histopathology is not replaced without a reason
            asked.locator("[name=reason]").fill("wrong vial")
        if answer == "Escape":
            page.keyboard.press("Escape")
        else:
            asked.locator(f"button:text-is('{answer}')").click()
        last = page.locator(".sx-seen").nth(1)
        if answer == "Edit the note first":
            assert not asked.is_visible()
            assert page.evaluate("document.activeElement.name") == "note"
        if answer in ("Keep Melanoma", "Escape"):
            assert not asked.is_visible()
            assert last.locator("[name=label]").input_value() == "Melanoma"
            assert last.locator("[name=confirmed_by]").input_value() == "histopathology"
    page.wait_for_selector("text=Nothing states what confirms it")
    last = page.locator(".sx-seen").nth(1)
    earlier = last.locator(".sx-earlier li").all_inner_texts()
    assert len(earlier) == 2
    assert "confirmed by histopathology, recorded on" in earlier[0]
    assert "The reason given was “wrong vial”." in earlier[0]
    assert "The note was found to still fit on" in last.locator(".sx-noted").inner_text()
    assert "older than the last change" not in last.inner_text()
    last.locator(".sx-note-history summary").click()
    history = last.locator(".sx-note-history li").all_inner_texts()
    assert [one.split(" on ")[0] for one in history] == [
        "The note was found to still fit", "The note was changed", "The note was written",
    ]  # fmt: skip
    assert "histology <b>done</b>" in history[1]
    findings = axe(page)
    assert findings == [], reported(findings)
    last.locator("summary:has-text('deletion')").click()
    last.locator("[data-ask]").click()
    sure = last.locator("dialog")
    asked = sure.inner_text()
    assert asked.startswith("Delete the case “Kept on ")
    assert "” of P-017, left arm for good?" in asked
    findings = axe(page)
    assert findings == [], reported(findings)
    assert page.evaluate("document.activeElement.textContent") == "Keep it"
    page.keyboard.press("Enter")
    assert not sure.is_visible()
    last.locator("[data-ask]").click()
    page.keyboard.press("Escape")
    assert not sure.is_visible()
    assert len(Casebook.open(painted.book).all_cases("ann")) == 2
    last.locator("[data-ask]").click()
    sure.locator(".sx-danger").click()
    page.wait_for_selector("text=The case and its photos are deleted")
    assert page.locator(".sx-seen").count() == 1
    assert "are deleted" in page.evaluate("document.activeElement.textContent")
    for one in (0, 1):  # the page is free again after the first deletion, and after the last
        page.click("button[role=tab]:has-text('Diagnosis')")
        page.wait_for_selector("#sx-file", state="attached")
        page.click("button[role=tab]:has-text('Case book')")
        if one:
            break
        assert [case.id for case in Casebook.open(painted.book).all_cases("ann")] == [kept[0].id]
        page.fill("[name=note]", "written and not saved")  # this question stands over the other
        page.click("summary:has-text('deletion')")
        page.click("[data-ask]")
        page.locator(".sx-seen .sx-danger:visible").last.click()
        page.click("[data-discard]")
        page.wait_for_selector("text=The case book is empty.")
        assert page.locator("dialog:modal").count() == 0
    assert kept[1].photos[0][700:900] not in painted.book.read_bytes()


def test_what_a_clinician_confirms_is_at_hand(opened: Opened, photos: dict[str, Path]) -> None:
    page = opened("hugo").page
    page.set_input_files("#sx-file", [photos["unknown"], photos["good"], photos["soon"]])
    page.click(".sx-ask")
    page.click(".sx-keep summary")
    page.fill("[name=patient]", "Maria Lopez")
    page.fill("[name=lesion]", "arm")
    page.check("[name=consent]")
    page.click(".sx-keep-form .sx-primary")
    assert page.locator(".sx-kept").count() == 0  # the browser asks whether it is one lesion
    page.check("[name=one_lesion]")
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=looks like the name of a person")
    assert page.input_value("[name=lesion]") == "arm"
    assert page.is_checked("[name=one_lesion]")
    page.fill("[name=patient]", "P-1")
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book")
    open_book(page)
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen")
    for width, height in ((1280, 800), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate("window.scrollTo(0, 0)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        saves = page.locator("button[value=confirm]").bounding_box()
        assert saves is not None
        assert saves["y"] + saves["height"] < 1000  # with three photos above it
        photo = page.locator(".sx-strip button").first
        photo.focus()
        page.keyboard.press("Enter")
        small, large = (page.locator(f"{one} img").first.bounding_box() for one in SIZES)
        assert small is not None
        assert large is not None
        assert large["width"] > 2 * small["width"]
        page.keyboard.press("Escape")
        assert not page.locator(".sx-zoom").is_visible()
    # What the model did not know is no answer in the case book either.
    assert "The model does not know" in page.locator(".sx-seen").inner_text()
    assert page.locator(".sx-seen .sx-nearest").count() == 1


def test_photos_that_differ_are_asked_about_and_two_cases_are_enlarged_together(
    opened: Opened, photos: dict[str, Path], axe: "Callable[[Page], list[dict[str, Any]]]"
) -> None:
    page = opened("nora").page
    page.set_input_files("#sx-file", [photos["soon"], photos["differ"]])
    page.press(".sx-ask", "Enter")
    page.wait_for_selector(".sx-differ", state="visible")
    assert "one and the same lesion?" in page.locator(".sx-differ").inner_text()
    assert page.locator(".sx-result").count() == 0  # the question comes before the answer
    findings = axe(page)
    assert findings == [], reported(findings)
    assert page.locator(".sx-differ .sx-primary").inner_text() == "No, change the photos"
    page.keyboard.press("Enter")  # the focus is on it
    assert page.evaluate("document.activeElement.textContent") == "Remove"
    page.press(".sx-ask", "Enter")
    page.click("[data-one]")
    page.wait_for_selector(".sx-keep")
    assert page.locator(".sx-result .sx-one-lesion").count() == 0  # it was asked
    page.click(".sx-change")
    page.click("[aria-label='Remove photo 2']")
    for photo in ("soon", "urgent"):
        if photo == "urgent":
            page.click("[data-again]")
            page.wait_for_selector(".sx-waiting")
            page.set_input_files("#sx-file", photos[photo])
        page.click(".sx-ask")
        page.wait_for_selector(".sx-keep:not(:has([name=one_lesion]))")
        page.click(".sx-keep summary")
        page.fill(".sx-follow [name=patient]", "P-017")
        page.fill("[name=lesion]", "left arm")
        page.locator(".sx-keep-form [name=site]").select_option("")  # a person may change it
        for name in ("compare", "consent"):
            page.check(f".sx-keep-form [name={name}]")
        page.click(".sx-keep-form .sx-primary")
        page.wait_for_selector("text=Kept in the case book")
    open_book(page)
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen >> nth=1")
    for width, across in ((390, False), (1280, True)):
        page.set_viewport_size({"width": width, "height": 844})
        one, other = (photo.bounding_box() for photo in page.locator(".sx-strip img").all())
        assert one is not None
        assert other is not None
        assert (other["x"] > one["x"] + one["width"]) is across
        assert one["width"] > 300
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    later = page.locator(".sx-seen").first.locator(".sx-later-facts").first
    later.locator("summary").click()
    later.locator("[name=age]").fill("64")
    later.locator("[name=site]").select_option("back")
    findings = axe(page)
    assert findings == [], reported(findings)
    later.locator("button").click()
    page.wait_for_selector("text=gives another place than the one chosen for the photo (back)")
    assert later.locator("[name=age]").input_value() == "64"
    assert page.evaluate("document.activeElement.name") == "same_lesion"
    page.keyboard.press("Space")
    later.locator("button").click()
    page.wait_for_selector("text=The facts are saved. The answer was given without these facts")
    first = page.locator(".sx-seen").first
    assert first.locator(".sx-person").inner_text().lower().startswith("age 64 years")
    assert "by nora: age 64 years and place" in first.locator(".sx-added").inner_text()
    folded = page.locator(".sx-seen-errors p").first
    assert not folded.is_visible()
    page.emulate_media(media="print")
    assert folded.is_visible()  # on paper nothing can be opened
    page.emulate_media(media="screen")
    page.locator(".sx-strip button").last.focus()
    page.keyboard.press("Enter")
    zoom = page.locator(".sx-zoom")
    assert (
        zoom.locator("figcaption").all_inner_texts() == page.locator(".sx-of").all_text_contents()
    )
    assert "The scale of these photos is not known" in zoom.inner_text()
    findings = axe(page)
    assert findings == [], reported(findings)
    for key, times in (("+", "1.5×"), ("+", "2.3×"), ("-", "1.5×")):
        page.keyboard.press(key)
        assert zoom.locator("[role=status]").inner_text() == f"Zoom {times}"
    zoom.locator("img").first.hover()
    page.mouse.wheel(0, -100)
    page.wait_for_function("document.querySelector('.sx-zoom-times').textContent == 'Zoom 1.8×'")
    before = [one.bounding_box() for one in zoom.locator("img").all()]
    page.keyboard.press("ArrowRight")
    after = [one.bounding_box() for one in zoom.locator("img").all()]
    moved = [was["x"] - now["x"] for was, now in zip(before, after, strict=True) if was and now]
    assert moved[0] == pytest.approx(moved[1], abs=1)  # both move together
    assert moved[0] > 5
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("Escape")
    assert not zoom.is_visible()
    page.evaluate(
        """() => document.querySelectorAll("[data-large]").forEach(
        (one, number) => { one.dataset.mm = 10 * (number + 1); })"""
    )
    page.locator(".sx-strip button").first.click()
    assert "Both photos have the same scale." in zoom.inner_text()
    widths = [one.evaluate("one => one.clientWidth") for one in zoom.locator("img").all()]
    assert widths[1] == pytest.approx(2 * widths[0], abs=2)
    page.keyboard.press("Escape")
    answer = page.get_attribute("[data-answer]", "data-answer")
    page.evaluate("window.scrollTo(0, 0)")
    page.click(".sx-lesion")  # on a phone the chosen lesion comes into view
    page.wait_for_selector(f"[data-answer]:not([data-answer='{answer}'])", state="attached")
    page.wait_for_function("scrollY > 0")


def test_a_note_is_kept_or_asked_about_and_a_reload_keeps_the_place(
    opened: Opened, photos: dict[str, Path], axe: "Callable[[Page], list[dict[str, Any]]]"
) -> None:
    seen = opened("ines")
    page = seen.page
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    keep(page, photos["soon"])
    page.wait_for_selector("text=Kept in the case book")
    page.click("[data-again]")
    page.wait_for_selector(".sx-waiting")
    keep(page, photos["urgent"], "right arm")
    page.wait_for_selector("text=Kept in the case book")
    names = page.locator("#sx-patients option").evaluate_all("all => all.map((one) => one.value)")
    assert names == []  # it is kept, so the form is gone
    open_book(page)
    page.click(".sx-lesion:has-text('left arm')")
    page.wait_for_selector(".sx-seen")
    shown = page.url
    assert "P-017" not in shown
    page.fill("[name=note]", "a note")
    page.click("button[role=tab]:has-text('Diagnosis')")
    page.click("button[role=tab]:has-text('Case book')")
    assert (page.input_value("[name=note]"), page.url, asked) == ("a note", shown, [])
    page.click(".sx-lesion:has-text('right arm')")
    findings = axe(page)
    assert findings == [], reported(findings)
    assert page.evaluate("document.activeElement.textContent") == "Save and go on"
    page.keyboard.press("Escape")
    assert (page.input_value("[name=note]"), page.url) == ("a note", shown)
    page.click(".sx-lesion:has-text('right arm')")
    page.click("[data-save]")
    page.wait_for_selector(".sx-pair:has-text('right arm')")
    assert asked == []
    page.go_back()
    page.wait_for_selector(".sx-pair:has-text('left arm')")
    assert (page.input_value("[name=note]"), page.url) == ("a note", shown)
    page.fill("[name=note]", "gone")
    page.click(".sx-lesion:has-text('right arm')")
    page.click("[data-discard]")
    page.wait_for_selector(".sx-pair:has-text('right arm')")
    page.go_back()
    page.wait_for_selector(".sx-pair:has-text('left arm')")
    assert page.input_value("[name=note]") == "a note"
    # A consent is saved at once, and what is written beside it stays and can be saved after it.
    page.fill("[name=note]", "a third note")
    page.click("summary:has-text('deletion')")
    page.check("[name=train]")
    page.click("button[value=agree]")
    page.wait_for_selector("text=The consent is saved. The patient agreed to train on")
    assert page.input_value("[name=note]") == "a third note"
    assert _unsaved(page)
    page.click("button[value=confirm]")
    page.wait_for_selector("text=The note is saved.")
    # Facts that are typed and not saved are asked about too.
    page.click(".sx-later-facts summary >> nth=0")
    page.fill("[name=age]:visible", "64")
    page.click(".sx-lesion:has-text('right arm')")
    page.click("[data-discard]")
    page.wait_for_selector(".sx-pair:has-text('right arm')")
    page.go_back()
    page.wait_for_selector(".sx-pair:has-text('left arm')")
    # What is typed while the opened tab is still being read stays.
    page.click("button[role=tab]:has-text('Diagnosis')")
    held: list[Route] = []

    def hold(route: "Route") -> None:
        held.append(route)

    page.route("**/gradio_api/queue/join*", hold)
    before = page.get_attribute("[data-answer]", "data-answer")
    page.click("button[role=tab]:has-text('Case book')")
    while not held:
        page.wait_for_timeout(20)
    page.fill("[name=note]", "typed meanwhile")
    # A report of it would not hold what is not saved, so that is asked first. The late reply takes
    # neither the question away nor what was typed.
    page.click(".sx-files a >> nth=0")
    page.wait_for_selector("[data-stay]")
    held[0].continue_()
    page.unroute("**/gradio_api/queue/join*")
    page.wait_for_selector(f"[data-answer]:not([data-answer='{before}'])", state="attached")
    page.click("[data-stay]")
    assert page.input_value("[name=note]") == "typed meanwhile"
    page.click(".sx-files a >> nth=0")
    with page.expect_download() as download:
        page.click("[data-save]")
    assert download.value.suggested_filename.endswith(".pdf")
    assert page.input_value("[name=note]") == "typed meanwhile"
    page.fill("[name=note]", "a third note")
    before = page.get_attribute("[data-answer]", "data-answer")
    page.click("button[value=confirm]")
    page.wait_for_selector(f"[data-answer]:not([data-answer='{before}'])", state="attached")
    # What is discarded for a report does not come back with the next reply.
    page.fill("[name=note]", "discarded")
    page.click(".sx-files a >> nth=0")
    with page.expect_download():
        page.click("[data-discard]")
    before = page.get_attribute("[data-answer]", "data-answer")
    page.click(".sx-lesion:has-text('left arm')")
    page.wait_for_selector(f"[data-answer]:not([data-answer='{before}'])", state="attached")
    assert page.input_value("[name=note]") == "a third note"
    page.fill("[name=note]", "typed again")
    page.click(".sx-lesion:has-text('right arm')")
    page.click("[data-stay]")
    page.reload()
    page.wait_for_selector(".sx-pair:has-text('left arm')")
    assert page.url == shown
    page.fill("[name=note]", "another note")
    page.reload()
    page.wait_for_selector(".sx-pair:has-text('left arm')")
    assert asked[-1] == "beforeunload"


def test_the_crop_is_shown_and_a_lesion_that_leaves_it_is_taken_again(
    opened: Opened, tmp_path: Path, axe: "Callable[[Page], list[dict[str, Any]]]"
) -> None:
    middle = spotted(tmp_path / "middle.jpg", (340, 220, 500, 380))
    wide = spotted(tmp_path / "wide.jpg", (80, 150, 760, 450))
    page = opened("jule").page
    page.set_input_files("#sx-file", [wide, spotted(tmp_path / "edge.jpg", (300, 250, 500, 640))])
    page.wait_for_selector(".sx-cut >> nth=1")
    beyond, edge = page.locator(".sx-cut").all_inner_texts()
    assert "lie outside the square that the networks see" in beyond
    assert "reach the edge of the photo" in edge
    assert page.locator(".sx-crop").count() == 2
    findings = axe(page)
    assert findings == [], reported(findings)
    page.click(".sx-ask")
    page.wait_for_selector(".sx-keep")
    answer = page.locator(".sx-why").inner_text()
    for said in (beyond, edge):  # the answer repeats what the form said of each photo
        assert said.count(".") == 1
        assert said.partition(",")[0] in answer
    page.click(".sx-change")
    with page.expect_file_chooser() as chooser:
        page.click("[aria-label='Replace photo 1']")
    chooser.value.set_files(middle)
    page.wait_for_selector("text=Check that the whole lesion is inside.")
    assert page.locator(".sx-file-name").all_inner_texts() == ["middle.jpg", "edge.jpg"]
    page.click("[aria-label='Remove photo 2']")
    # The date that a person gives stands with the kept case.
    page.fill("[name=taken]", "2024-05-12")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-keep")
    page.click(".sx-keep summary")
    page.fill("[name=patient]", "P-1")
    page.fill("[name=lesion]", "arm")
    page.check("[name=consent]")
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book under P-1, arm.")
    open_book(page)
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen h3:has-text('12 May 2024')")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_patient_is_shown_alone_and_a_diagnosis_is_offered_to_the_lesion(
    opened: Opened, painted: Painted, axe: "Callable[[Page], list[dict[str, Any]]]"
) -> None:
    book = Casebook.open(painted.book)
    for seed, patient, lesion in ((1, "P-1", "arm"), (2, "P-10", "leg"), (3, "P-10", "leg")):
        book.keep(
            "pia.lang", answer(seed), patient=patient, lesion=lesion, consent=True, compare=True
        )
    page = opened("pia.lang").page
    page.set_viewport_size({"width": 390, "height": 844})
    open_book(page)
    heading = page.locator(".sx-patient:text-is('P-1')")
    heading.focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-pressed") == "true"
    assert page.locator(".sx-lesion:visible").all_inner_texts()[0].startswith("arm")
    assert page.locator(".sx-lesion:visible").count() == 1
    findings = axe(page)
    assert findings == [], reported(findings)
    page.click("text=Show all patients")
    assert page.locator(".sx-lesion:visible").count() == 2
    page.click(".sx-lesion:has-text('leg')")
    page.wait_for_selector(".sx-seen >> nth=1")
    first, last = page.locator(".sx-seen").all()
    first.locator("[name=label]").select_option("Melanoma")
    first.locator("[name=confirmed_by]").select_option("histopathology")
    assert first.locator("[name=clinician]").input_value() == "pia.lang"  # the login is a name
    first.locator("[name=clinician]").fill("Dr A. Keller")
    first.locator("button[value=confirm]").click()
    page.click("text=Record the same diagnosis here")
    fields = ("label", "confirmed_by", "clinician")
    assert [last.locator(f"[name={one}]").input_value() for one in fields] == [
        "Melanoma", "histopathology", "Dr A. Keller",
    ]  # fmt: skip
    assert page.evaluate("document.activeElement.value") == "confirm"
    assert sum(case.finding.is_given for case in book.all_cases("pia.lang")) == 1
    findings = axe(page)
    assert findings == [], reported(findings)
    page.keyboard.press("Enter")
    last.locator("text=It is confirmed by histopathology.").wait_for()
    assert sum(case.finding.is_given for case in book.all_cases("pia.lang")) == 2


def test_nothing_typed_or_ticked_stays_for_another_case(
    opened: Opened, photos: dict[str, Path]
) -> None:
    page = opened("kim").page
    keep(page, photos["soon"])
    page.wait_for_selector("text=Kept in the case book")
    page.click("[data-again]")
    page.wait_for_selector(".sx-waiting")
    keep(page, photos["urgent"], "right arm 12.03.1961")
    # The question about the names comes to stand where the first consent stood.
    page.wait_for_selector("text=holds a date, perhaps of a birth")
    ticks = page.locator(".sx-keep-form [type=checkbox]")
    names = ticks.evaluate_all("all => all.map((one) => [one.name, one.checked])")
    assert names == [
        ["no_person", False], ["consent", True], ["compare", True], ["train", False],
    ]  # fmt: skip
    named = page.locator(".sx-keep-form")
    assert named.locator("[name=site]").input_value() == "arm"
    assert named.locator("[name=laterality]").input_value() == "right"
    page.fill("[name=lesion]", "right arm")
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book")
    open_book(page)
    page.click(".sx-lesion:has-text('left arm')")
    page.wait_for_selector(".sx-pair:has-text('left arm')")
    assert page.locator(".sx-search").is_visible()  # from the first lesion on
    # A save that saves nothing says so where it is seen, above a button at the window's edge too.
    save = page.locator("button[value=confirm]")
    save.evaluate("one => { one.scrollIntoView(); one.focus(); }")
    page.keyboard.press("Enter")
    said = page.locator("text=Nothing was changed, so nothing was saved.")
    said.wait_for()
    page.wait_for_timeout(100)
    assert (said.bounding_box() or {"y": -9})["y"] > -1
    page.locator("[name=label]").select_option("Melanoma")
    page.fill("[name=note]", "about the left arm")
    page.click(".sx-confirm summary")
    page.fill("[name=icd10]", "C4")
    page.click("button[value=confirm]")
    page.wait_for_selector("text=is not an ICD-10 code")
    written = [page.input_value(f"[name={name}]") for name in ("label", "note", "icd10")]
    assert written == ["Melanoma", "about the left arm", "C4"]  # it is not typed twice
    page.fill("[name=icd10]", "")
    page.fill("[name=clinician]", "Dr A. Keller")
    page.click("button[value=confirm]")
    page.wait_for_selector("text=Melanoma is saved.")
    page.click(".sx-lesion:has-text('right arm')")
    page.wait_for_selector(".sx-pair:has-text('right arm')")
    assert [page.input_value(f"[name={name}]") for name in ("label", "note", "icd10")] == [""] * 3


def test_another_login_sees_nothing_of_it(
    opened: Opened, painted: Painted, photos: dict[str, Path]
) -> None:
    hers = opened("cleo").page
    keep(hers, photos["soon"], "cleo's secret place")
    hers.wait_for_selector("text=Kept in the case book")
    (case,) = Casebook.open(painted.book).all_cases("cleo")
    his = opened("bob").page
    open_book(his)
    assert "empty" in his.locator(".sx-book").inner_text()
    # What a form of his own making asks for is answered in the same way.
    his.evaluate(
        """(sent) => { const form = document.createElement('form');
        for (const [name, value] of Object.entries(sent))
          form.append(Object.assign(document.createElement('input'), { name, value }));
        document.querySelector('.sx-book').append(form); form.requestSubmit(); }""",
        {"action": "delete", "case": case.id, "patient": "P-017", "lesion": "cleo's secret place"},
    )
    his.wait_for_selector("text=This case is not in the case book")
    assert "secret place" not in his.content()
    assert len(Casebook.open(painted.book).all_cases("cleo")) == 1


def test_of_two_tabs_the_older_note_is_refused_and_shown(
    opened: Opened, painted: Painted, photos: dict[str, Path]
) -> None:
    first = opened("dora").page
    keep(first, photos["soon"])
    first.wait_for_selector("text=Kept in the case book")
    second = opened("dora").page
    for page in (first, second):
        open_book(page)
        page.click(".sx-lesion")
        page.wait_for_selector(".sx-seen")
    first.fill("[name=note]", "/ the newer note")  # no path, though it begins like one
    first.click("button[value=confirm]")
    first.wait_for_selector("text=The note is saved")
    second.fill("[name=note]", "an older <i>note")
    second.click("button[value=confirm]")
    second.wait_for_selector("text=was changed in another window")
    assert second.locator(".sx-unsaved").inner_text() == "Not saved: an older <i>note"
    assert second.input_value("[name=note]") == "/ the newer note"
    (case,) = Casebook.open(painted.book).all_cases("dora")
    assert case.note == "/ the newer note"
    second.fill("[name=note]", "both notes")
    second.click("button[value=confirm]")
    second.wait_for_selector("text=The note is saved")
    assert second.locator(".sx-unsaved").count() == 0


def test_a_database_that_fails_is_a_sentence_and_the_log_names_nobody(
    opened: Opened, painted: Painted, photos: dict[str, Path]
) -> None:
    page = opened("emil").page
    keep(page, photos["soon"], "a lesion of emil")
    page.wait_for_selector("text=Kept in the case book")

    def rename(old: str, new: str) -> None:
        with closing(sqlite3.connect(painted.book)) as link:
            link.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("sealed_cases", "away")
    try:
        page.click("button[role=tab]:has-text('Case book')")
        page.wait_for_selector("text=The case book cannot be read")
        page.click("button[role=tab]:has-text('Diagnosis')")
        page.click("[data-again]")
        page.wait_for_selector(".sx-waiting")
        keep(page, photos["urgent"], "a lesion of emil")
        page.wait_for_selector("text=The case book cannot be written")
    finally:
        rename("away", "sealed_cases")
    log = (painted.folder / "log").read_text()
    assert "cannot be written" in log
    for secret in ("emil", "P-017", "INSERT", "parameters", "a secret of the server"):
        assert secret not in log


def test_logging_out_asks_about_an_unsaved_note(opened: Opened, photos: dict[str, Path]) -> None:
    seen = opened("lea")
    page = seen.page
    keep(page, photos["soon"])
    page.wait_for_selector("text=Kept in the case book")
    open_book(page)
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen")
    page.fill("[name=note]", "a note")
    page.click("button[role=tab]:has-text('Diagnosis')")
    page.click(".sx-login button")
    page.wait_for_selector(".sx-leaving", state="visible")
    page.click("[data-stay]")
    assert page.input_value("[name=note]") == "a note"
    page.route("**/login?*", lambda route: route.fulfill(body="<title>login</title>"))
    second = page.context.new_page()
    second.goto(seen.url)
    second.evaluate("new BroadcastChannel('skindx').postMessage('out')")
    page.wait_for_url("**/login?out=unsaved")
    page.goto("about:blank")


def test_another_side_is_asked_about_and_the_pseudonym_is_carried(
    opened: Opened, painted: Painted, photos: dict[str, Path]
) -> None:
    page = opened("mia").page
    keep(page, photos["soon"])
    page.wait_for_selector("text=Kept in the case book")
    page.click("[data-again]")
    page.wait_for_selector(".sx-waiting")
    page.set_input_files("#sx-file", photos["urgent"])
    page.locator("[name=laterality]").first.wait_for(state="attached")
    page.evaluate(
        """() => { const one = document.querySelector("[name=laterality]");
        if (one.options) one.value = "right";
        else document.querySelector("[name=laterality][value=right]").checked = true; }"""
    )
    page.click(".sx-ask")
    page.wait_for_selector(".sx-keep")
    page.click(".sx-keep summary")
    patient, hint = page.locator("[data-pseudonym]"), page.locator(".sx-known-names")
    for typed, said in (
        ("Maria Lopez", "use a pseudonym such as P-017"),
        ("P-018", "P-018 is new in this case book."),  # the next of a series
        ("P-O17", "Did you mean P-017?"),
    ):
        patient.fill(typed)
        patient.press("Tab")
        assert said in hint.inner_text()
    assert page.locator("[name=patient]").count() == 1  # of the case and of the PDF
    patient.fill("")
    page.fill("[name=lesion]", "left arm")
    page.check("[name=consent]")
    page.click(".sx-keep-form .sx-primary")
    assert "is missing, so fill it in." in page.locator(".sx-follow .sx-lacks").inner_text()
    patient.fill("P-017")
    assert "P-017 is in the case book with left arm" in hint.inner_text()
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=gives another side than the one chosen for the photo (right)")
    assert page.evaluate("document.activeElement.name") == "same_lesion"
    page.check("[name=same_lesion]")
    page.fill("[name=lesion]", "left arm.")  # another name needs another look
    assert not page.is_checked("[name=same_lesion]")
    page.fill("[name=lesion]", "left arm")
    page.check("[name=same_lesion]")
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book under P-017, left arm.")
    cases = Casebook.open(painted.book).all_cases("mia")
    assert [(case.person.laterality, case.version) for case in cases] == [("left", 1), ("right", 1)]


def test_another_lesion_is_asked_about_and_two_dates_never_reassure(
    opened: Opened, photos: dict[str, Path], axe: "Callable[[Page], list[dict[str, Any]]]"
) -> None:
    page = opened("ida").page
    keep(page, photos["soon"])
    page.wait_for_selector("text=Kept in the case book")
    page.click("[data-again]")
    page.wait_for_selector(".sx-waiting")
    keep(page, photos["other"])
    page.wait_for_selector("text=This photo looks like another lesion than that of the case")
    assert page.evaluate("document.activeElement.name") == "same_lesion"
    findings = axe(page)
    assert findings == [], reported(findings)
    page.keyboard.press("Space")
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book")
    open_book(page)
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen >> nth=1")
    said = page.locator(".sx-compare ~ p").all_inner_texts()
    assert said[0].startswith("If you see a change in size, shape, colour or structure, ")
    assert page.locator(".sx-compare ~ p b").first.inner_text() == said[0]
    assert said[1].startswith("These photos look like different lesions, so check")
    # The date and the advice stand above each photo, the earlier one first.
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        tops = page.locator(".sx-seen-top").all()
        for top in tops:
            heading, photo = top.locator("h3").bounding_box(), top.locator("img").bounding_box()
            assert heading
            assert photo
            assert 0 <= photo["y"] - heading["y"] - heading["height"] < 12
            assert top.locator("h3 .sx-chip").count() == 1
    findings = axe(page)
    assert findings == [], reported(findings)


def test_what_was_done_is_recorded_struck_out_and_listed(
    opened: Opened,
    painted: Painted,
    axe: "Callable[[Page], list[dict[str, Any]]]",
) -> None:
    for seed, lesion in enumerate(("left arm", "left leg")):
        names = {"patient": "P-017", "lesion": lesion}
        Casebook.open(painted.book).keep("olga", answer(seed), consent=True, **names)
    page = opened("olga").page
    open_book(page)
    arm = page.locator(".sx-lesion:has-text('left arm')")
    assert "No action recorded yet." in arm.inner_text()
    without = page.locator("[data-state=without]")
    assert without.inner_text() == "Without action: 2"
    arm.click()
    page.wait_for_selector(".sx-seen")
    # By keyboard alone, on a phone too.
    page.set_viewport_size({"width": 390, "height": 844})
    done = page.locator(".sx-done")
    done.locator("summary:text('Record what was done')").focus()
    page.keyboard.press("Enter")
    done.locator("[name=kind]").select_option("referred")
    done.locator("[name=detail]").fill("Anna Keller")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=The details may hold a name (Anna Keller).")
    assert done.locator("[name=kind]").input_value() == "referred"
    assert page.locator(".sx-confirm .sx-refusal").inner_text() == ""
    findings = axe(page)
    assert findings == [], reported(findings)
    done.locator("[name=detail]").fill("the dermatology clinic")
    done.locator("[name=day]").fill("2026-01-05")
    done.locator("[name=who]").fill("Dr A. Keller")
    done.locator("button[value=record]").click()
    page.wait_for_selector("text=The entry is recorded. The patient was referred on 05 Jan")
    entry = done.locator("li").inner_text()
    assert "referred on 05 Jan 2026 (“the dermatology clinic”)." in entry
    assert "by Dr A. Keller (login olga)." in entry
    assert without.inner_text() == "Without action: 1"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # What is written and not saved is asked about, and the note beside it stays.
    page.fill("[name=note]", "a note")
    done.locator("summary:text('Record what was done')").click()
    done.locator("[name=kind]").select_option("awaited")
    done.locator("[name=day]").fill("2026-01-06")
    done.locator("button[value=record]").click()
    page.click("[data-save]")
    page.wait_for_selector("text=recorded. A result has been awaited since 06 Jan 2026.")
    assert page.input_value("[name=note]") == "a note"
    (case,) = (one for one in Casebook.open(painted.book).all_cases("olga") if one.actions)
    assert (case.note, len(case.actions)) == ("a note", 2)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert "Result awaited since 06 Jan 2026." in arm.inner_text()
    for state, left in (("awaited", "left arm"), ("without", "left leg")):
        page.click(f"[data-state={state}]")
        assert page.locator(f"[data-state={state}]").get_attribute("aria-pressed") == "true"
        assert page.locator(".sx-lesion:visible b:first-child").all_inner_texts() == [left]
    page.click("[data-state=without]")
    assert page.locator(".sx-lesion:visible").count() == 2
    for left in (1, 0):
        done.locator(".sx-strike summary").first.click()
        done.locator("[name=why]").first.fill("the wrong lesion")
        done.locator("[value=strike]").first.click()
        page.wait_for_selector("text=The entry is struck out and stays visible.")
        page.wait_for_function(f"document.querySelectorAll('.sx-strike').length === {left}")
    assert "Struck out on" in done.locator("li:has(s)").first.inner_text()
    assert "The reason given was “the wrong lesion”." in done.inner_text()
    page.wait_for_selector("[data-state=without]:text('Without action: 2')")
    assert "No entry stands." in done.inner_text()
    # The last confirmed diagnosis stays in the list, and a deletion leaves its line.
    for label, basis in (("Melanoma", "histopathology"), ("Nevus", "clinical opinion")):
        page.locator("[name=label]").select_option(label)
        page.locator("[name=confirmed_by]").select_option(basis)
        page.fill("[name=clinician]", "Dr A. Keller")
        page.click("button[value=confirm]")
        page.wait_for_selector(".sx-confirm .sx-kept:not(:empty), dialog[data-now][open]")
    asked = page.locator("dialog[data-now]")
    asked.locator("[value=keep]").check()
    asked.locator("[name=reason]").fill("wrong vial")
    asked.locator("[value=overwrite]").click()
    page.wait_for_selector("text=It is a clinical opinion and no confirmed diagnosis")
    found = "Nevus (mole) (clinical opinion), Melanoma (histopathology, replaced on "
    assert found in arm.inner_text()
    assert found in page.locator(".sx-pair").inner_text()
    page.click("summary:has-text('Consent and deletion')")
    page.click("[data-ask]")
    page.locator(".sx-seen dialog .sx-danger:visible").click()
    page.wait_for_selector("text=The case and its photos are deleted")
    page.click("[data-state=without]")
    page.click(".sx-deletions summary")
    gone = page.locator(".sx-deletions li").inner_text()
    assert gone.startswith("A case with 1 photo, kept on ")
    assert gone.endswith("The login olga deleted it.")
    findings = axe(page)
    assert findings == [], reported(findings)
