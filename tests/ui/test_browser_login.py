"""Logging in and out in a real chromium: what a browser adds to a form on its own decides."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn
from echo_app import echo
from served import free_port
from windows import Painted

from skindx.ui.http import users as module
from skindx.ui.http.browser_rules import Headers
from skindx.ui.http.login import Gate
from skindx.ui.http.users import Users, add_user

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve a page of a few lines behind the gate and the headers, in a thread."""
    monkeypatch.setattr(module, "_COST", 1 << 4)
    add_user(tmp_path / "users.json", "anna", PASSWORD)
    app, port = Headers(Gate(echo, Users(tmp_path / "users.json"))), free_port()
    config = uvicorn.Config(app, port=port, lifespan="off", log_level="error")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)


def test_a_person_logs_in_and_out(browser: "Browser", url: str) -> None:
    page = browser.new_page()
    page.goto(url)
    assert page.url == f"{url}/login"
    page.goto(f"{url}/login?out=unsaved")
    page.wait_for_selector("text=in another tab. Unsaved notes were discarded.")
    page.fill("#name", "anna")
    page.fill("#password", "a wrong password")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=The name or the password is wrong.")
    page.fill("#name", "anna")
    page.fill("#password", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_selector('text=["anna", 0]')
    page.goto(f"{url}/login")
    page.click("text=Log out")
    page.wait_for_selector("#password")
    page.goto(url)
    assert page.url == f"{url}/login"
    page.context.close()


def log_in(page: "Page", url: str) -> None:
    page.goto(f"{url}/login")
    page.fill("#name", "anna")
    page.fill("#password", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_selector("#sx-file", state="attached")


def test_one_click_logs_out_and_a_lost_session_keeps_what_was_typed(
    browser: "Browser", painted: Painted, photos: dict[str, Path]
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page, other = context.new_page(), context.new_page()
    asked: list[str] = []
    page.on("dialog", lambda dialog: asked.append(dialog.type))
    log_in(page, painted.locked)
    other.goto(painted.locked)  # the cookie is of both
    other.wait_for_selector("#sx-file", state="attached")
    page.set_input_files("#sx-file", photos["good"])
    page.click(".sx-ask")
    page.click(".sx-keep summary")
    page.fill("[name=patient]", "P-1")
    page.fill("[name=lesion]", "arm")
    page.check("[name=consent]")
    # The session ends elsewhere; each part of the page says the same, and a new login is enough.
    cookies = context.cookies()
    context.clear_cookies()
    for button, refusal in (
        (".sx-keep-form .sx-primary", ".sx-lost"),
        (".sx-pdf", ".sx-report-problem"),
        ("button[role=tab]:has-text('Case book')", ".sx-out"),
    ):
        page.click(button)
        page.wait_for_selector(f"{refusal}:has-text('log in')")
    page.click("button[role=tab]:has-text('Diagnosis')")
    assert page.get_attribute(".sx-out a", "target") == "_blank"
    assert page.input_value("[name=patient]") == "P-1"
    context.add_cookies(cookies)
    page.mouse.wheel(0, 5000)  # what says that the login is lost covers nothing at the page's end
    page.click(".sx-keep-form .sx-primary")
    page.wait_for_selector("text=Kept in the case book")
    assert page.locator(".sx-out > *").count() == 0
    page.click("text=Log out")
    page.wait_for_selector("#password")
    other.wait_for_selector("#password")
    assert context.cookies() == []
    assert asked == []
    page.go_back()
    assert page.locator(".sx-keep-form, .sx-result, .sx-book").count() == 0
    context.close()
