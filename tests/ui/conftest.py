"""One chromium, and one page with made-up answers, for all browser tests."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
from network_guard import calls_in, guarded_environment
from painted_answers import (
    BLURRED,
    BROKEN,
    BUSY,
    CLOSE,
    DARK,
    DIFFER,
    OTHER,
    PLAIN,
    SLOW,
    URGENCIES,
    jpeg,
)
from served import free_port
from windows import ARGUMENTS, CHROMIUM, STORED, Painted, Seen, Windows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def chromium() -> "Iterator[tuple[Browser, asyncio.AbstractEventLoop]]":
    """Start one chromium for all tests of a worker; yield it with its driver's event loop."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: `apt install chromium` lets these tests run")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)
        browser.close()


@pytest.fixture
def browser(chromium: "tuple[Browser, asyncio.AbstractEventLoop]") -> "Iterator[Browser]":
    """Yield the browser. Between tests its loop is hidden: `asyncio.run` refuses to work in it."""
    browser, loop = chromium
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def painted(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Painted]:
    folder = tmp_path_factory.mktemp("painted")
    ports = free_port(), free_port()
    page = Painted(f"http://127.0.0.1:{ports[0]}", folder, f"http://127.0.0.1:{ports[1]}")
    environment = guarded_environment(folder)
    support = Path(__file__).parents[1] / "support"
    environment["PYTHONPATH"] = f"{environment['PYTHONPATH']}:{support}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, support / "page_server.py", *map(str, ports), tiny_bundle, page.book],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
        )  # fmt: skip
        try:
            _wait(page, process)
            yield page
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert calls_in(folder) == []


def _wait(page: Painted, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 240
    while True:
        try:
            if httpx.get(page.url, timeout=30).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
        assert process.poll() is None, (page.folder / "log").read_text()
        assert time.monotonic() < deadline, (page.folder / "log").read_text()


@pytest.fixture(scope="session")
def windows(chromium: "tuple[Browser, asyncio.AbstractEventLoop]") -> Windows:
    return Windows(chromium[0])


@pytest.fixture
def opened(
    browser: "Browser", windows: Windows, request: pytest.FixtureRequest
) -> "Iterator[Callable[..., Seen]]":
    """Open the page in a window of its own; no window may err, ask others or store anything."""
    all_seen: list[Seen] = []

    def open_page(user: str = "", url: str = "", **options: Any) -> Seen:
        url = url or request.getfixturevalue("painted").url
        page = windows.open(url, user, **options)
        seen = Seen(page, url)
        all_seen.append(seen)
        page.set_default_timeout(120_000)
        page.on("console", lambda m: seen.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("request", lambda sent: seen.hosts.add(urlsplit(sent.url).netloc))
        page.goto(url)
        page.wait_for_selector("#sx-file", state="attached")
        return seen

    yield open_page
    # A page that was left has no storage to look into.
    pages = [seen.page for seen in all_seen if seen.page.url != "about:blank"]
    stored = [page.evaluate(STORED) for page in pages]
    windows.close()
    for seen in all_seen:
        assert seen.errors == []
        assert seen.hosts <= {urlsplit(seen.url).netloc, ""}  # "": data: and blob:
    assert not any(stored)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return photos by what the painter makes of them."""
    folder = tmp_path_factory.mktemp("photos")
    widths = {"good": 1600, "blurred": BLURRED, "plain": PLAIN, "busy": BUSY, "broken": BROKEN}
    widths |= {"dark": DARK, "slow": SLOW, "differ": DIFFER, "other": OTHER, "close": CLOSE}
    widths |= {urgency: width for width, urgency in URGENCIES.items()}
    files = {name: folder / f"{name}.jpg" for name in widths}
    files["blurred_too"] = folder / "blurred_too.jpg"
    files["blurred_too"].write_bytes(jpeg(BLURRED, BLURRED, seed=1))
    for name, width in widths.items():
        files[name].write_bytes(jpeg(width, 3 * width // 4, seed=width))
    return files


_COLOUR_RULES = ["color-contrast", "link-in-text-block"]
"""The rules of axe-core that depend on colours, and so on the scheme."""


@pytest.fixture(scope="session")
def axe() -> "Callable[[Page], list[dict[str, Any]]]":
    """Return what finds the serious and critical accessibility findings of a page or a part of it.

    It is checked by all rules in light colours and by the rules of colour in dark ones; `themed`:
    a script marks the page when its scheme has changed.
    """
    engine = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    def findings(page: "Page", part: str = ":root", *, themed: bool = True) -> list[dict[str, Any]]:
        if page.evaluate("!('axe' in window)"):
            page.evaluate(engine.axe_script)
        # Without motion: no colour is measured on its way to another.
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        found = run(page, part, {})
        page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        if themed:
            page.wait_for_selector(".dark", state="attached")
        found += run(page, part, {"runOnly": _COLOUR_RULES})
        page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        if themed:
            page.wait_for_selector(".dark", state="detached")
        return found

    def run(page: "Page", part: str, options: dict[str, Any]) -> list[dict[str, Any]]:
        asked = "async (asked) => (await axe.run(...asked)).violations"
        violations = page.evaluate(asked, [part, {"resultTypes": ["violations"]} | options])
        return [
            {"rule": violation["id"], "at": [node["target"] for node in violation["nodes"]]}
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]

    return findings
