"""Make the images of the page under docs/images: `python docs/screenshots.py [BUNDLE [PHOTO ...]]`.

Serves the bundle, by default the released model, with a case book in a temporary folder, and looks
at it in chromium. Without photos it takes the examples beside the bundle.
"""

import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from skindx_bench.serve.server import ARGUMENTS, CHROMIUM

IMAGES = Path(__file__).parent / "images"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}


def main(arguments: Sequence[str]) -> None:
    """Make all images."""
    bundle = arguments[0] if arguments else "ham10000"
    photos = [Path(argument) for argument in arguments[1:]] or example_photos(bundle)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        book = Path(folder) / "cases.db"
        command = [sys.executable, "-m", "skindx", "serve", bundle, "--port", port]
        server = subprocess.Popen([*command, "--casebook", book, "--workers", "1"])
        try:
            url = f"http://127.0.0.1:{port}"
            wait(url, server)
            browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
            take(browser, url, photos)
        finally:
            server.terminate()
            server.wait()


def example_photos(bundle: str) -> list[Path]:
    """Return two examples of a bundle with one truth, so that they may pass for one lesion's.

    The first is the first example. Of a bundle without examples: test images of its dataset.
    """
    from skindx.data.manifest import read_manifest
    from skindx.models.bundle.installed import bundle_path
    from skindx.models.bundle.use_limits import EXAMPLES, read_examples

    path = bundle_path(bundle).resolve()
    listed = [photo.example for photo in read_examples(path).photos.values()]
    pairs = [(path.parent / EXAMPLES / one.file, one.truth) for one in listed]
    if not pairs:
        dataset = path.parent / "data"
        test = [record for record in read_manifest(dataset) if record.split == "test"]
        label = sorted({record.label for record in test})[-1]
        pairs = [(dataset / record.path, label) for record in test if record.label == label]
    return [photo for photo, truth in pairs if truth == pairs[0][1]][:2]


def wait(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Return as soon as the server answers."""
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while server.poll() is None:
        try:
            directly.open(f"{url}/healthz", timeout=10)
            return
        except OSError:
            sleep(0.3)
    raise SystemExit("the server did not start")


def take(browser: Browser, url: str, photos: Sequence[Path]) -> None:
    """Take the screenshots: form, answer, heat map, dark, phone, case book."""
    page = opened(browser, url, DESKTOP)
    shoot(page, "page-intake")
    ask(page, photos[:1])
    shoot(page, "page")
    if page.locator(".sx-heat-on").count():
        page.check(".sx-heat-on")
        page.wait_for_timeout(500)
    shoot(page, "page-why", full_page=True)
    keep(page)
    page.click("[data-again]")
    page.wait_for_selector(".sx-waiting")
    ask(page, photos[-1:])
    keep(page)
    page.click("button[role=tab]:has-text('Case book')")
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen")
    shoot(page, "casebook")
    dark = opened(browser, url, DESKTOP | {"color_scheme": "dark"})
    ask(dark, photos[:1])
    shoot(dark, "page-dark")
    phone = opened(browser, url, PHONE)
    ask(phone, photos[:1])
    shoot(phone, "page-phone")


def opened(browser: Browser, url: str, options: dict[str, Any]) -> Page:
    """Return the page in a new window."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    page.wait_for_selector("#sx-file", state="attached")
    return page


def ask(page: Page, photos: Sequence[Path]) -> None:
    """Fill in the form and wait for the whole answer."""
    page.set_input_files("#sx-file", list(photos))
    page.fill("[name=age]", "62")
    page.select_option("[name=site]", "back")
    page.select_option("[name=duration]", "months")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow, .sx-refused, .sx-problem")
    if not page.locator(".sx-follow").count():
        raise SystemExit(page.locator(".sx-refused, .sx-problem").first.inner_text())


def keep(page: Page) -> None:
    """Put the answer into the case book."""
    page.click(".sx-keep summary")
    page.fill("[name=patient]", "P-017")
    page.fill("[name=lesion]", "spot on the back")
    for purpose in ("consent", "compare"):
        page.check(f".sx-keep-form [name={purpose}]")
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book")


def shoot(page: Page, name: str, **options: Any) -> None:
    """Write docs/images/NAME.png."""
    page.mouse.move(0, 0)
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", **options)
    print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
