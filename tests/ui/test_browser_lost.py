"""Whatever fails between page and server is said on the page, and the form is there again."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from windows import Seen

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.browser

HTML, JSON = {"content-type": "text/html"}, {"content-type": "application/json"}
FAILURES: list[tuple[str, dict[str, Any] | None, str]] = [
    ("upload", {"status": 200, "headers": HTML, "body": "<html>"}, "could not be sent"),
    ("upload", {"status": 200, "headers": JSON, "body": "{}"}, "could not be sent"),
    ("upload", {"status": 404, "headers": HTML, "body": "no"}, "does not know the address"),
    ("upload", None, "could not be sent"),
    ("queue/join", {"status": 404, "headers": HTML, "body": "no"}, "was lost"),
    ("queue/join", {"status": 200, "headers": HTML, "body": "<html>"}, "was lost"),
    ("queue/join", None, "was lost"),
    ("queue/data", {"status": 502, "headers": HTML, "body": "no"}, "was lost"),
]  # fmt: skip


def failing(answer: dict[str, Any] | None) -> Callable[["Route"], None]:
    return lambda route: route.fulfill(**answer) if answer else route.abort()


def test_any_failure_is_said(opened: Callable[..., Seen], photos: dict[str, Path]) -> None:
    seen = opened()
    page = seen.page
    page.set_default_timeout(20_000)
    page.set_input_files("#sx-file", photos["good"])
    for route, answer, said in FAILURES:
        where = f"**/gradio_api/{route}*"
        page.route(where, failing(answer))
        page.click(".sx-ask")
        page.wait_for_selector(f".sx-refusal:has-text('{said}')")
        assert page.locator(".sx-ask.sx-busy").count() == 0
        page.unroute(where)
    seen.errors.clear()  # of the requests above


def test_an_upload_that_hangs_is_given_up(
    opened: Callable[..., Seen], photos: dict[str, Path]
) -> None:
    seen = opened()
    page = seen.page
    page.set_default_timeout(20_000)
    page.clock.install()
    page.set_input_files("#sx-file", photos["good"])
    page.route("**/gradio_api/upload*", lambda _: None)
    page.click(".sx-ask")
    page.wait_for_selector(".sx-ask.sx-busy")
    page.clock.fast_forward(60_000 + photos["good"].stat().st_size)
    page.wait_for_selector(".sx-refusal:has-text('could not be sent')")
    seen.errors.clear()
