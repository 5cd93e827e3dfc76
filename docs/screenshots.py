"""Make docs/images of the page: `python docs/screenshots.py [BUNDLE]`.

Serves the bundle with a case book in a temporary folder and looks at it in chromium. The answers
are to its first example. No other photo of people may lie in the repository, so the case book holds
two photos that are made of that example: one smaller, one turned by two degrees and cut narrower.
"""

import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from skindx_bench.serve.server import ARGUMENTS, CHROMIUM

IMAGES = Path(__file__).parent / "images"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}


def main(arguments: Sequence[str]) -> None:
    """Make all images."""
    parser = ArgumentParser(description="Make the images of the page under docs/images.")
    parser.add_argument("bundle", nargs="?", default="ham10000")
    bundle = parser.parse_args(arguments).bundle
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        command = [sys.executable, "-m", "skindx", "serve", bundle, "--port", port]
        book = ["--casebook", str(Path(folder) / "cases.db")]
        server = subprocess.Popen([*command, *book, "--workers", "1"])
        try:
            url = f"http://127.0.0.1:{port}"
            wait(url, server)
            browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
            take(browser, url)
            take_book(browser, url, two_photos(browser, url, Path(folder)))
        finally:
            server.terminate()
            server.wait()


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


def take(browser: Browser, url: str) -> None:
    """Take the form and the answer to an example: its heat map, in the dark and on a phone too."""
    page = opened(browser, url, DESKTOP)
    shoot(page, "page-intake", full_page=True)
    try_example(page)
    shoot(page, "page")
    page.check(".sx-heat-on")
    page.locator(".sx-heat-on").blur()
    page.wait_for_timeout(500)
    shoot(page, "page-why", full_page=True)
    for name, options in (("page-dark", DESKTOP | {"color_scheme": "dark"}), ("page-phone", PHONE)):
        page = opened(browser, url, options)
        try_example(page)
        shoot(page, name)


def two_photos(browser: Browser, url: str, folder: Path) -> dict[str, Path]:
    """Write two photos made of the first example; return them by the day that each is given."""
    place = opened(browser, url, DESKTOP).get_attribute("[data-example]", "data-example")
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    example = Image.open(directly.open(urllib.parse.urljoin(f"{url}/", place))).convert("RGB")
    width, height = example.size
    turned = example.rotate(2, Image.Resampling.BICUBIC)
    cut = turned.crop((width // 12, height // 12, width - width // 12, height - height // 12))
    photos = {"2026-03-05": folder / "first.jpg", "2026-09-21": folder / "second.jpg"}
    for image, path in zip((example, cut), photos.values(), strict=True):
        image.resize((width - 4, height - 3)).save(path, quality=95)
    return photos


def take_book(browser: Browser, url: str, photos: Mapping[str, Path]) -> None:
    """Keep each photo as a case of one lesion, and take their comparison."""
    page = opened(browser, url, DESKTOP)
    for day, photo in photos.items():
        page.set_input_files("#sx-file", photo)
        page.fill("[name=taken]", day)
        page.click(".sx-ask")
        await_answer(page)
        keep(page)
        page.click("[data-again]")
        page.wait_for_selector(".sx-waiting")
    page.click("button[role=tab]:has-text('Case book')")
    page.click(".sx-lesion")
    page.wait_for_selector(".sx-seen")
    shoot(page, "casebook", full_page=True)


def opened(browser: Browser, url: str, options: dict[str, Any]) -> Page:
    """Return the page in a new window."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    page.wait_for_selector("#sx-file", state="attached")
    return page


def try_example(page: Page) -> None:
    """Try the bundle's first example."""
    if not page.locator("[data-example]").count():
        raise SystemExit("The bundle has no examples; name one that has them, such as ham10000.")
    page.locator("[data-example]").first.click()
    await_answer(page)


def await_answer(page: Page) -> None:
    """Wait for the whole answer; a refusal ends the script."""
    page.wait_for_selector(".sx-may, .sx-problem, .sx-refusal:visible")
    if not page.locator(".sx-may").count():
        raise SystemExit(page.locator(".sx-problem, .sx-refusal:visible").first.inner_text())


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
