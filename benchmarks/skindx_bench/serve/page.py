"""From click to complete page, in a real chromium."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.errors import UserError
from skindx.core.machine import require_extra

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_WAIT_MS = 120_000
# The photo, its heat map and the similar cases are there and decoded, not only asked for.
_COMPLETE = """() => document.querySelector('.sx-follow')
  && [...document.querySelectorAll('#sx-right img, #sx-left img')]
       .every((image) => image.complete && image.naturalWidth)"""


@contextmanager
def opened(url: str) -> Iterator["Page"]:
    """Yield the page of a server in a browser. Raises UserError where there is none."""
    require_extra(
        "dev", "playwright", purpose="the bench of the page", otherwise=", or set page=false"
    )
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        raise UserError(f"{CHROMIUM} is not there; run `apt install chromium`, or set page=false.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector("#sx-file", state="attached", timeout=_WAIT_MS)
        yield page
        browser.close()


def ask(page: "Page", photo: Path) -> tuple[float, float]:
    """Return the seconds from the click to the complete page, and to the PDF report from its click.

    The upload is among the first ones.
    """
    page.set_input_files("#sx-file", photo)
    page.wait_for_selector(".sx-photo", timeout=_WAIT_MS)
    start = time.perf_counter()
    page.click(".sx-ask")
    page.wait_for_function(_COMPLETE, timeout=_WAIT_MS)
    complete_s = time.perf_counter() - start
    start = time.perf_counter()
    with page.expect_download(timeout=_WAIT_MS) as report:
        page.click(".sx-pdf")
    report.value.path()  # waits until it is written
    report_s = time.perf_counter() - start
    page.click(".sx-again")
    page.wait_for_selector(".sx-follow", state="detached", timeout=_WAIT_MS)
    return complete_s, report_s
