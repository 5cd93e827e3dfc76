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

from skindx.ui.http import users as module
from skindx.ui.http.browser_rules import Headers
from skindx.ui.http.login import Gate
from skindx.ui.http.users import Users, add_user

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
