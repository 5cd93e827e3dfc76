"""The page as a person sees it, in a real chromium, over made-up answers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from windows import DESKTOP, PHONE, Painted, Seen, reported

from skindx.taxonomy import load_taxonomy
from skindx.texts.catalogue import text

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Locator, Page

pytestmark = pytest.mark.browser
Opened = Callable[..., Seen]
Photos = dict[str, Path]
Axe = Callable[..., list[dict[str, Any]]]


def ask(page: "Page", *photos: Path) -> None:
    page.set_input_files("#sx-file", list(photos))
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")


def box(place: "Locator") -> dict[str, float]:
    found = place.bounding_box()
    assert found is not None
    return dict(found)


def test_photos_become_an_answer_in_the_right_order(
    opened: Opened, painted: Painted, photos: Photos
) -> None:
    page = opened().page
    page.set_input_files("#sx-file", [photos["good"], photos["plain"]])
    page.set_input_files("#sx-file", photos["unknown"])
    assert page.locator(".sx-photo").count() == 3
    page.wait_for_selector(".sx-photo:nth-child(3) .sx-central")
    central, preview = (
        box(page.locator(".sx-central").first),
        box(page.locator(".sx-preview img").first),
    )
    assert abs(central["width"] - central["height"]) < 1
    assert central["width"] <= min(preview["width"], preview["height"])
    question = page.locator(".sx-one-lesion")
    assert "one and the same lesion?" in question.inner_text()
    assert box(question)["y"] > box(page.locator(".sx-photo").last)["y"]
    page.click("[aria-label='Remove photo 2']")
    assert painted.uploads == []  # nothing leaves the device before the button
    person = page.locator(".sx-facts summary")
    assert "optional" in person.inner_text()
    person.click()
    page.fill("[name=age]", "45")
    page.select_option("[name=site]", "back")
    page.check("[name=skin_type][value='5']")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")
    assert page.locator(".sx-summary").inner_text() == (
        "2 photos · 45\N{NO-BREAK SPACE}years · back · skin type V"
    )
    assert "45\N{NO-BREAK SPACE}years · back" in (person.text_content() or "")
    places = [box(page.locator(name))["y"] for name in (".sx-next", ".sx-may", ".sx-behind")]
    assert places == sorted(places)
    assert "within the next weeks" in page.locator(".sx-advice").inner_text()
    assert page.locator(".sx-set .sx-rank").count() == 3
    assert "about 90 of 100 photos" in (page.locator(".sx-decided").text_content() or "")
    assert page.evaluate("window.scrollY") == 0
    for seen in (".sx-notice", ".sx-advice"):  # without scrolling
        assert box(page.locator(seen))["y"] + box(page.locator(seen))["height"] < 800
    assert page.evaluate("document.activeElement.className") == "sx-result"
    assert painted.uploads == []
    shares = [
        float(text.strip("<> %")) for text in page.locator(".sx-set .sx-percent").all_inner_texts()
    ]
    fills = [box(bar)["width"] for bar in page.locator(".sx-bar i").all()]
    bars = [box(bar)["width"] for bar in page.locator(".sx-bar").all()]
    for share, fill, bar in zip(shares, fills, bars, strict=True):
        assert fill / bar == pytest.approx(share / 100, abs=0.01)


def test_lesions_are_outlined_and_a_report_is_made_that_is_not_on_the_server(
    opened: Opened, painted: Painted, photos: Photos
) -> None:
    seen = opened()
    page = seen.page
    ask(page, photos["good"])
    outline = page.locator(".sx-box .sx-over")
    assert outline.evaluate("e => getComputedStyle(e).fill") == "none"
    shown = page.locator(".sx-photo-shown")
    assert shown.evaluate("e => [e.naturalWidth, e.naturalHeight]") == [1280, 960]
    assert box(shown) == pytest.approx(box(page.locator(".sx-frame svg")), abs=1)
    heat = page.locator(".sx-heat")
    assert heat.evaluate("e => getComputedStyle(e).opacity") == "0"
    page.focus(".sx-heat-on")
    page.keyboard.press("Space")
    page.wait_for_function("getComputedStyle(document.querySelector('.sx-heat')).opacity === '1'")
    assert box(heat) == pytest.approx(box(shown), abs=1)
    assert page.locator(".sx-heat-words").first.is_visible()
    # The report is made when it is asked for.
    reports = []
    for _ in range(2):
        with page.expect_download() as download:
            page.click(".sx-pdf")
        assert download.value.suggested_filename.endswith(".pdf")
        reports.append(Path(download.value.path()).read_bytes())
        page.wait_for_selector(".sx-pdf:not([aria-disabled])")
    assert reports[0].startswith(b"%PDF")
    assert reports[0] == reports[1]
    assert painted.uploads == []
    # The server is started again meanwhile: its key is another one.
    page.locator(".sx-pdf").evaluate(
        "e => { e.dataset.report = 'AAAA' + e.dataset.report.slice(4); }"
    )
    page.click(".sx-pdf")
    page.wait_for_selector(".sx-report-problem:not(:empty)")
    assert "get the answer again" in page.locator(".sx-report-problem").inner_text()
    assert page.locator(".sx-pdf").inner_text() == "PDF report"
    (failed,) = seen.errors  # the browser's own line about the answer 422
    assert "422" in failed
    seen.errors.clear()


def test_refusals_stand_beside_their_photos_and_the_page_goes_on(
    opened: Opened, painted: Painted, photos: Photos
) -> None:
    page = opened().page
    page.set_input_files("#sx-file", [photos["dark"], photos["good"], photos["blurred"]])
    page.click(".sx-ask")
    page.wait_for_selector(".sx-refused")
    reported = [photo.inner_text() for photo in page.locator(".sx-photo").all()]
    assert "The photo is too dark" in reported[0]
    assert "The photo is" not in reported[1]
    assert "The photo is blurred; hold still" in reported[2]
    assert page.locator(".sx-refused").count() == 2
    assert page.locator(".sx-one-lesion, .sx-refused .sx-seen-part p").count() == 1
    step = page.locator(".sx-step").inner_text()
    order = (
        text("tier_beyond"),
        text("advice_now"),
        text("advice_now_sooner"),
        f"Not assessed. {text('not_judged')}",
    )
    places = [step.index(words) for words in order]
    assert places == sorted(places)
    assert box(page.locator(".sx-step"))["y"] < box(page.locator(".sx-photos"))["y"]
    assert page.locator(".sx-result").count() == 0
    assert painted.uploads == []
    record = page.locator(".sx-unjudged-report")
    assert not page.locator(".sx-to-record").is_visible()  # the form stands beside it
    page.set_viewport_size(PHONE["viewport"])
    page.click(".sx-to-record")
    assert record.locator("[data-pseudonym]").evaluate("one => one === document.activeElement")
    record.locator("[data-pseudonym]").fill("P-017")
    with page.expect_download() as download:
        record.locator(".sx-pdf").click()
    assert re.fullmatch(r"skindx-P-017-.*-not-judged\.pdf", download.value.suggested_filename)
    assert Path(download.value.path()).read_bytes().startswith(b"%PDF")
    page.click("[aria-label='Remove photo 1']")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-photo:nth-child(2).sx-refused")
    assert page.locator(".sx-refused").count() == 1
    page.wait_for_function(
        "document.querySelector('.sx-unjudged-report [data-pseudonym]')?.value === ''"
    )
    page.click("[aria-label='Remove photo 2']")
    # A failure is one sentence without secrets.
    failures = {"busy": "Too many people ask", "broken": "Something went wrong on the server"}
    for kind, sentence in failures.items():
        page.set_input_files("#sx-file", photos[kind])
        page.click(".sx-ask")
        page.wait_for_selector(f".sx-problem:has-text('{sentence}')")
        assert "secret" not in page.content()
        assert page.locator(".sx-ask").get_attribute("aria-disabled") == "false"
        page.click("[aria-label='Remove photo 2']")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")


def test_a_person_says_how_refused_photos_were_taken_and_the_answer_says_so(
    opened: Opened, photos: Photos
) -> None:
    page = opened().page
    page.set_input_files("#sx-file", [photos["close"], photos["good"]])
    page.click(".sx-ask")
    say = page.locator(".sx-step .sx-say")
    say.wait_for()
    assert page.locator(".sx-step .sx-advice").inner_text() == text("advice_now")
    described = page.locator(f"#{say.get_attribute('aria-describedby')}")
    assert text("said_hazard_dermoscopic") in described.inner_text()
    page.click("[aria-label='Remove photo 2']")
    assert say.count() == 0  # it is of the photos that were refused, and of no others
    page.click(".sx-ask")
    say.wait_for()
    assert box(page.locator(".sx-refusal:has-text('no such photo')"))["y"] < box(say)["y"]
    say.click()
    page.wait_for_selector(".sx-follow")
    warning, advice = (
        page.locator(".sx-next .sx-warning").first,
        page.locator(".sx-result .sx-advice"),
    )
    assert "A person said that photo 1 was taken through a dermatoscope" in warning.inner_text()
    assert box(warning)["y"] < box(advice)["y"]
    page.click(".sx-change")
    page.set_input_files("#sx-file", photos["differ"])
    page.click(".sx-ask")  # what was said of other photos does not hold for these
    say.click()
    page.click(".sx-differ[open] [data-one]")  # it still holds after another question
    page.wait_for_selector(".sx-follow")
    assert page.locator(".sx-step > *").count() == 0


def test_a_phone_shows_what_is_known_and_the_next_step_first_and_nothing_sticks_out(
    opened: Opened, photos: Photos
) -> None:
    page = opened(**PHONE).page
    names = [skin_class.name for skin_class in load_taxonomy("isic9").classes]
    limits, chooser = page.locator(".sx-limits-known"), box(page.locator(".sx-file-label").first)
    assert "knows 9 conditions" in limits.inner_text()
    assert box(limits)["y"] < chooser["y"]
    assert chooser["y"] + chooser["height"] < 844  # without scrolling
    scope = page.locator("#sx-known")
    scope.locator("summary").click()
    assert all(name in scope.inner_text() for name in names)
    assert page.locator(".sx-camera input").get_attribute("capture") == "environment"
    assert page.locator(".sx-camera").is_visible()
    page.click(".sx-facts summary")
    radio = page.get_by_role("radio", name="IV: Rarely")
    style = "e => [getComputedStyle(e).appearance, getComputedStyle(e).backgroundImage]"
    for checked in (False, True):
        assert radio.is_checked() == checked
        assert radio.evaluate(style) == ["auto", "none"]
        radio.check()
    page.get_by_label("Where on the body").select_option("genitals")
    assert "no photo of a child" in page.locator(".sx-private").inner_text()
    page.get_by_label("Where on the body").select_option("sole")
    assert not page.locator(".sx-private").is_visible()
    page.get_by_label("Side of the body").select_option("left")
    tips, button = (
        box(page.locator(name)) for name in (".sx-tips-first", ".sx-file-label >> nth=0")
    )
    assert tips["y"] + tips["height"] < button["y"]
    page.click(".sx-tips-first summary")
    assert page.locator(".sx-tips:visible").count() == 1
    page.set_input_files("#sx-camera", photos["soon"])
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for seen in (".sx-notice", ".sx-advice"):
        assert box(page.locator(seen))["y"] + box(page.locator(seen))["height"] < 844
    order = (".sx-next", ".sx-may", ".sx-why", ".sx-behind", ".sx-follow")
    places = [box(page.locator(name))["y"] for name in order]
    assert places == sorted(places)
    assert all(box(page.locator(name))["width"] > 340 for name in order)
    assert not scope.is_visible()
    assert not limits.is_visible()  # the answer says it
    open_all(page)
    reported = page.locator(".sx-behind").inner_text()
    assert all(name in reported for name in names)
    assert "Merkel cell carcinoma" in reported


def test_an_abstention_looks_like_one_and_more_can_be_reported(
    opened: Opened, photos: Photos
) -> None:
    page = opened().page
    ask(page, photos["unknown"])
    assert "The model does not know." in page.locator(".sx-abstain").inner_text()
    assert page.locator(".sx-set, .sx-heat-on, .sx-heat, .sx-promise").count() == 0
    page.click(".sx-others summary")
    assert page.locator(".sx-may .sx-bar").count() == 0
    weights = [
        int(figure.evaluate("e => getComputedStyle(e).fontWeight"))
        for figure in page.locator(".sx-may :is(.sx-name, .sx-percent)").all()
    ]
    assert set(weights) == {400}
    page.click(".sx-change")
    page.click("[aria-label='Remove photo 1']")
    page.set_input_files("#sx-file", photos["plain"])
    page.click(".sx-ask")
    page.wait_for_selector(".sx-may:has-text('no conformal sets')")
    page.click(".sx-change")
    page.click(".sx-facts summary")
    page.fill("[name=age]", "7")
    page.click(".sx-ask")
    page.wait_for_function(
        "document.querySelector('.sx-summary').textContent.includes('7\\u00a0years')"
    )
    page.wait_for_selector(".sx-follow")


def test_what_the_form_itself_can_tell_is_reported_before_anything_is_sent(
    opened: Opened, photos: Photos, tmp_path: Path
) -> None:
    page = opened().page
    asks = page.locator(".sx-ask")
    asks.focus()  # the button says what is missing, and the focus reaches it
    assert page.evaluate("document.activeElement.className").endswith("sx-ask")
    assert (asks.inner_text(), asks.get_attribute("aria-disabled")) == ("Add a photo first", "true")
    assert page.locator("#sx-ask-why").inner_text() == "Choose at least one photo first."
    page.keyboard.press("Enter")
    assert "Choose at least one photo" in page.locator(".sx-refusal-form").inner_text()
    page.set_input_files("#sx-file", [photos["good"]] * 4)
    assert (asks.inner_text(), asks.get_attribute("aria-disabled")) == ("Get the answer", "false")
    assert "No more than 3" in page.locator(".sx-refusal-form").inner_text()
    assert page.locator(".sx-photo").count() == 3
    page.click(".sx-facts summary")
    page.fill("[name=age]", "300")
    page.click(".sx-facts summary")
    page.click(".sx-ask")  # what is wrong is shown
    wrong = page.locator("[name=age]")
    assert "0 to 120" in page.locator("#sx-age-problem").inner_text()
    assert wrong.get_attribute("aria-invalid") == "true"
    page.fill("[name=age]", "30")  # what is corrected is clear at once
    assert page.locator("#sx-age-problem").inner_text() == ""
    assert wrong.get_attribute("aria-invalid") == "false"
    # Motion is reduced where it is asked for.
    page.emulate_media(reduced_motion="reduce")
    moving = page.evaluate(
        "[...document.querySelectorAll('[class^=sx-]')].filter((e) =>"
        " parseFloat(getComputedStyle(e).transitionDuration) > 0).length"
    )
    assert moving == 0
    page.click("[aria-label='Remove photo 3']")
    big = tmp_path / "big.jpg"
    big.write_bytes(bytes(21 << 20))
    page.set_input_files("#sx-file", big)
    assert "more than 20 MB" in page.locator(".sx-refused").inner_text()
    assert text("not_judged") in page.locator(".sx-step").inner_text()
    page.click(".sx-refused .sx-remove")
    assert page.locator(".sx-unjudged").count() == 0


def test_the_keyboard_is_enough(opened: Opened, photos: Photos) -> None:
    page = opened().page
    # Choosers are caught from now on: asked for only at the key, chromium may hear of it too late.
    page.on("filechooser", lambda chooser: None)

    def tab_to(selector: str) -> None:
        for _ in range(30):
            if page.evaluate(f"document.activeElement.matches({selector!r})"):
                ring = page.evaluate(
                    "(() => { for (let e = document.activeElement; e; e = e.parentElement)"
                    " if (getComputedStyle(e).outlineStyle !== 'none') return true; })()"
                )
                assert ring, f"{selector} has the focus and does not show it"
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"no Tab leads to {selector}")

    tab_to("#sx-file")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(photos["good"])
    tab_to(".sx-facts summary")
    page.keyboard.press("Enter")
    for place in ("[name=age]", "[name=sex]", "[name=skin_type]", ".sx-ask"):
        tab_to(place)
    page.keyboard.press("Enter")
    page.wait_for_selector(".sx-follow")
    for place in (".sx-heat-on", ".sx-behind summary", ".sx-pdf", ".sx-keep summary"):
        tab_to(place)
    page.keyboard.press("Enter")
    tab_to("[name=lesion]")
    tab_to("[data-again]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sx-waiting")
    assert page.locator(".sx-photo").count() == 0
    assert page.evaluate("document.activeElement.id") == "sx-file"


def test_nobody_is_shut_out(opened: Opened, photos: Photos, axe: Axe) -> None:
    """What has the same layout in another colour, or stood before, is looked at in part."""
    page = opened(color_scheme="light", **PHONE).page
    open_all(page)
    page.set_input_files("#sx-file", photos["blurred"])
    page.click(".sx-ask")
    page.wait_for_selector(".sx-refused")
    findings = axe(page)
    assert findings == [], reported(findings)
    page.click("[aria-label='Remove photo 1']")
    page.set_input_files("#sx-file", photos["busy"])
    page.click(".sx-ask")
    page.wait_for_selector(".sx-problem")
    findings = axe(page, ".sx-problem")
    assert findings == [], reported(findings)
    page.click("[aria-label='Remove photo 1']")
    ask(page, photos["urgent"])
    open_all(page)
    page.check(".sx-heat-on")
    findings = axe(page)
    assert findings == [], reported(findings)
    for urgency in ("soon", "routine"):
        classes = f"sx-next sx-{urgency}"
        page.locator(".sx-next").evaluate("(e, classes) => { e.className = classes; }", classes)
        findings = axe(page, ".sx-next")
        assert findings == [], (urgency, reported(findings))
    page.click("[data-again]")
    page.wait_for_selector(".sx-waiting", state="attached")
    ask(page, photos["unknown"])
    open_all(page)
    findings = axe(page, ".sx-result")
    assert findings == [], reported(findings)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["", "soon", "routine", "unknown"])
def test_nobody_is_shut_out_of_a_whole_page(
    opened: Opened, photos: Photos, axe: Axe, kind: str
) -> None:
    page = opened(color_scheme="light", **PHONE).page
    if kind:
        ask(page, photos[kind])
        open_all(page)
    findings = axe(page)
    assert findings == [], reported(findings)


def open_all(page: "Page") -> None:
    page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")


def test_change_back_and_reload_lose_nothing_unasked(opened: Opened, photos: Photos) -> None:
    page = opened().page
    asked: list[str] = []

    def stay(dialog: "Dialog") -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    ask(page, photos["soon"])
    answer = page.locator(".sx-advice").inner_text()
    page.click(".sx-change")
    page.click(".sx-facts summary")
    page.fill("[name=age]", "7")
    page.click(".sx-back")  # what the answer is about stays as it was asked
    assert page.locator(".sx-advice").inner_text() == answer
    assert page.locator(".sx-summary").inner_text() == "1 photo"
    page.go_back()
    page.wait_for_selector(".sx-back", state="visible")
    assert page.input_value("[name=age]") == "7"
    assert page.locator(".sx-photo").count() == 1
    page.go_forward()
    page.wait_for_selector(".sx-summary", state="visible")
    # What fails afterwards leaves the answer where it is.
    page.click(".sx-change")
    page.click("[aria-label='Remove photo 1']")
    page.set_input_files("#sx-file", photos["busy"])
    page.click("[data-same]")  # the age was given with the other photo
    page.click(".sx-ask")
    page.wait_for_selector(".sx-refusal-form:has-text('Too many people ask')")
    page.click(".sx-back")
    assert page.locator(".sx-advice").inner_text() == answer
    page.click(".sx-again")
    assert page.evaluate("document.activeElement.textContent") == "Keep it"
    page.keyboard.press("Enter")
    assert page.locator(".sx-advice").inner_text() == answer
    page.on("dialog", stay)
    page.evaluate("setTimeout(() => location.reload())")
    page.wait_for_timeout(500)
    assert asked == ["beforeunload"]
    assert page.locator(".sx-advice").inner_text() == answer
    page.click(".sx-again")
    page.click(".sx-clears .sx-danger")
    page.wait_for_selector(".sx-waiting")
    assert page.locator(".sx-photo, .sx-back:visible").count() == 0
    page.reload()  # there is nothing to lose now
    assert asked == ["beforeunload"]


@pytest.mark.parametrize("window", [PHONE, DESKTOP])
def test_facts_of_one_patient_do_not_pass_to_the_next_after_a_refusal(
    opened: Opened, photos: Photos, axe: Axe, window: dict[str, Any]
) -> None:
    page = opened(**window).page
    whose, ask_it, record = (
        page.locator(one) for one in (".sx-whose", ".sx-ask", ".sx-unjudged-report")
    )
    page.set_input_files("#sx-file", photos["blurred"])
    page.press(".sx-facts summary", "Enter")
    page.fill("[name=age]", "70")
    page.press(".sx-asks summary", "Enter")
    page.check("[name=bleeds][value=yes]")
    assert not page.locator(".sx-new").is_visible()
    ask_it.press("Enter")
    record.wait_for(state="visible")
    assert page.locator(".sx-new").is_visible()
    # What the answers ask for stands first, as in an answer, and nothing weaker beside it.
    assert page.locator(".sx-step h2").inner_text().split("\n") == ["Next step", "Urgent"]
    first, urgent = page.locator(".sx-step .sx-advice"), text("advice_met", conditions=["bleeds"])
    assert first.inner_text() == urgent
    size = first.evaluate("one => getComputedStyle(one).fontSize")
    assert size == ("18.88px" if window is PHONE else "20.8px")  # as in an answer
    assert text("advice_now") not in page.locator(".sx-intake").inner_text()
    findings = axe(page)
    assert findings == [], reported(findings)
    # A record is offered of what was sent alone.
    page.fill("[name=age]", "71")
    page.press("[name=age]", "Tab")
    record.wait_for(state="hidden")
    page.fill("[name=age]", "70")
    page.press("[name=age]", "Tab")
    record.wait_for(state="visible")
    page.press(".sx-remove", "Enter")
    record.wait_for(state="hidden")
    assert "70\N{NO-BREAK SPACE}years · 1 answer" in whose.inner_text()
    assert first.inner_text() == urgent  # it is about the patient, not about the photo
    page.set_input_files("#sx-file", [photos["good"], photos["urgent"]])
    ask_it.press("Enter")  # nothing is asked before that is said
    assert page.evaluate("document.activeElement.className").endswith("sx-whose")
    assert page.locator(".sx-ask.sx-busy, .sx-result").count() == 0
    findings = axe(page)
    assert findings == [], reported(findings)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert not whose.is_visible()
    assert page.input_value("[name=age]") == ""
    assert page.locator("[name=bleeds]:checked, .sx-step > *").count() == 0
    page.check(".sx-one-yes")
    ask_it.press("Enter")
    page.wait_for_selector(".sx-follow")
    assert page.locator(".sx-summary").inner_text() == "2 photos"
    # The same after an answer; what is kept is sent.
    page.press(".sx-change", "Enter")
    page.press(".sx-facts summary", "Enter")
    page.fill("[name=age]", "50")
    page.press("[name=age]", "Tab")
    page.press("[aria-label='Remove photo 2']", "Enter")
    assert not whose.is_visible()
    page.set_input_files("#sx-file", photos["soon"])
    page.press("[aria-label='Remove photo 1']", "Enter")
    page.press("[data-same]", "Enter")
    ask_it.press("Enter")
    page.wait_for_selector(".sx-summary:has-text('1 photo · 50')")


def test_a_reason_that_all_photos_share_is_said_once_and_a_new_case_clears_all(
    opened: Opened, photos: Photos
) -> None:
    page = opened(**PHONE).page
    page.set_input_files("#sx-file", [photos["blurred"], photos["blurred_too"]])
    page.locator(".sx-facts summary").click()
    page.fill("[name=age]", "70")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-refused")
    step = page.locator(".sx-step").inner_text()
    assert f"{text('refused_photos', last=2)} the photo is blurred" in step
    assert page.locator(".sx-intake").inner_text().lower().count("the photo is blurred") == 1
    page.click("[aria-label='Remove photo 1']")
    assert "The photo is blurred" in page.locator(".sx-refused").inner_text()
    page.click(".sx-new")
    page.keyboard.press("Enter")  # the focus is on what changes nothing
    assert page.input_value("[name=age]") == "70"
    page.click(".sx-new")
    page.click(".sx-clears .sx-danger")
    page.wait_for_selector(".sx-photo", state="detached")
    assert page.input_value("[name=age]") == ""
    left = page.locator(".sx-new:visible, .sx-step > *, .sx-unjudged-report")
    assert left.count() == 0


def test_one_key_tries_an_example_and_nothing_of_it_is_kept(
    opened: Opened, painted: Painted, photos: Photos, axe: Axe
) -> None:
    page = opened(color_scheme="light", **PHONE).page
    names = [one.name for one in load_taxonomy("isic9").classes]
    page.click(".sx-facts summary")
    page.fill("[name=age]", "45")
    buttons = page.locator(".sx-examples button")
    assert buttons.count() == 2
    assert all(image["width"] > 40 for image in (box(one) for one in buttons.all()))
    assert page.locator(".sx-examples [tabindex='0']").count() == 1
    buttons.first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.firstChild.alt") == "Example 2 of 2"
    page.keyboard.press("Enter")
    page.wait_for_selector(".sx-truth")
    assert page.locator(".sx-summary").inner_text() == "An example"
    assert "nothing of this answer is kept" in page.locator(".sx-example-mark").inner_text()
    said = page.locator(".sx-truth").inner_text()
    for words in (names[1], "histopathology", f"is wrong and puts {names[0]} first", "A. Painter"):
        assert words in said
    assert "45" not in page.locator(".sx-may").inner_text()  # the facts are of somebody else
    assert page.locator(".sx-keep, .sx-pdf").count() == 0
    assert painted.uploads == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    findings = axe(page)
    assert findings == [], reported(findings)
    page.click(".sx-change")
    page.set_input_files("#sx-file", photos["good"])  # in the example's place
    assert page.locator(".sx-photo").count() == 1
    assert not buttons.first.is_visible()  # an example is looked at alone
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")
    assert page.locator(".sx-truth, .sx-example-mark").count() == 0
    assert page.locator(".sx-summary").inner_text() == "1 photo · 45\N{NO-BREAK SPACE}years"
