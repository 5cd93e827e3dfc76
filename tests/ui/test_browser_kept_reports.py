"""Reports in a real chromium: a pseudonym on a fresh one, and the files of a kept case."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_browser_casebook import keep, open_book
from windows import Seen, reported

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
Opened = Callable[..., Seen]


def test_reports_on_a_fresh_and_on_a_kept_answer(
    opened: Opened,
    photos: dict[str, Path],
    axe: "Callable[[Page], list[dict[str, Any]]]",
) -> None:
    seen = opened("ann")
    page = seen.page
    keep(page, photos["soon"], consent=False)
    assert page.locator("[data-clinician]").input_value() == ""  # no login signs
    page.fill("[data-clinician]", "Dr A. Keller")
    page.check("[name=consent]")
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book under P-017, left arm.")
    assert page.locator("[data-clinician]").input_value() == "Dr A. Keller"
    assert page.locator("[data-pseudonym]").input_value() == "P-017"
    page.fill("[data-pseudonym]", "P-018 乾")
    with page.expect_download() as fresh:
        page.click(".sx-pdf")
    assert Path(fresh.value.path()).read_bytes().startswith(b"%PDF")
    assert re.fullmatch(r"skindx-P-018-[0-9-]+-preliminary\.pdf", fresh.value.suggested_filename)
    for part in ("short", "patient"):
        with page.expect_download() as fresh:
            page.click(f"[data-part={part}]")
        assert fresh.value.suggested_filename.endswith(f"-preliminary.{part}.pdf")
    page.fill("[data-pseudonym]", "Maria Schneider")
    page.click(".sx-pdf")
    page.wait_for_selector("[data-no-person]")
    assert "looks like the name" in page.locator(".sx-report-problem").inner_text()
    page.check("[data-no-person]")
    with page.expect_download():
        page.click(".sx-pdf")
    page.fill("[data-pseudonym]", "P-018")
    assert not page.locator("[data-no-person]").is_visible()
    seen.errors.clear()  # the browser's own line about the answer 422
    open_book(page)
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen")
    for label, kind in (("PDF report", "pdf"), ("FHIR", "json"), ("DICOM", "zip")):
        with page.expect_download() as kept:
            page.click(f".sx-files a:has-text('{label}')")
        name = rf"skindx-P-017-left-arm-[0-9-]+-preliminary-1\.{kind}"
        assert re.fullmatch(name, kept.value.suggested_filename)
    findings = axe(page)
    assert findings == [], reported(findings)
