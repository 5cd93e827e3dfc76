"""Whatever fails between page and server is said on the page, and the form is there again."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from windows import Painted, Seen

from skindx.texts.catalogue import text

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

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
    seen = opened(apart=True)
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


SAID = """
window.said = [];
new MutationObserver(() => {
  for (const { textContent } of document.querySelectorAll(".sx-refusal"))
    if (textContent && !said.includes(textContent)) said.push(textContent);
}).observe(document.body, { subtree: true, childList: true, characterData: true });
"""
"""Whatever a refusal said on the page, for however short a time."""


def clear(page: "Page") -> None:
    page.click(".sx-again")
    page.click(".sx-clears .sx-danger")
    page.wait_for_selector(".sx-waiting")


def test_what_belongs_to_an_earlier_case_changes_nothing(
    opened: Callable[..., Seen], photos: dict[str, Path]
) -> None:
    """Answer, New case, photo, another photo, back, New case: by quick hands on a slow server."""
    seen = opened()
    page = seen.page
    page.set_default_timeout(20_000)
    page.evaluate(SAID)
    page.set_input_files("#sx-file", photos["soon"])
    page.dblclick(".sx-ask")
    page.wait_for_selector(".sx-follow")
    clear(page)
    # The stream of the first answer ends: the next question is not lost by that.
    page.set_input_files("#sx-file", photos["slow"])
    page.click(".sx-ask")
    page.set_input_files("#sx-file", photos["blurred"])  # it is not part of this question
    page.wait_for_selector(".sx-follow")
    assert page.locator(".sx-summary").inner_text() == "1 photo"
    assert page.evaluate("said") == []
    # A slow answer to a case that was cleared does not stand in the place of the next one.
    page.click(".sx-change")
    page.click("[aria-label='Remove photo 2']")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-ask.sx-busy")
    page.click(".sx-back")
    clear(page)
    assert page.locator(".sx-photo, .sx-ask.sx-busy").count() == 0
    page.set_input_files("#sx-file", photos["plain"])
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")
    first = page.locator(".sx-result").inner_text()
    page.wait_for_timeout(2500)
    assert page.locator(".sx-result").inner_text() == first
    clear(page)
    page.set_input_files("#sx-file", photos["blurred"])
    page.click(".sx-ask")
    page.wait_for_selector(".sx-refused")
    (blurred,) = page.evaluate("said")
    assert blurred.startswith("The photo is blurred")
    assert text("not_judged") in page.locator(".sx-step").inner_text()


def test_an_answer_that_comes_too_late_tells_the_form_nothing(
    painted: Painted, photos: dict[str, Path]
) -> None:
    """A browser shows a part the last of two messages alone: it would lose the newer answer."""
    session = "late"
    with httpx.Client(base_url=painted.url, timeout=30) as client:
        for question, name in enumerate(("slow", "plain"), 1):
            file = {"files": (name, photos[name].read_bytes())}
            path = client.post("/gradio_api/upload", files=file).json()[0]
            sent = {"question": question, "photos": [path], "patient": {}}
            body = {"data": [], "event_data": sent, "fn_index": 0, "session_hash": session}
            client.post("/gradio_api/queue/join", json=body).raise_for_status()
        told: list[str] = []
        params = {"session_hash": session}
        with client.stream("GET", "/gradio_api/queue/data", params=params) as events:
            for line in events.iter_lines():
                told += [line] if line.startswith("data:") else []
                if '"close_stream"' in line:
                    break
    questions = [number for line in told for number in re.findall(r'"question": ?(\d+)', line)]
    assert sum('"process_completed"' in line for line in told) == 2
    assert set(questions) == {"2"}


def test_a_server_that_went_away_is_said_and_the_next_one_answers(
    opened: Callable[..., Seen], photos: dict[str, Path]
) -> None:
    seen = opened()
    page = seen.page
    page.set_default_timeout(20_000)
    page.set_input_files("#sx-file", photos["soon"])
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")
    page.route("**/gradio_api/queue/join*", failing(None))
    page.click(".sx-again")
    page.click(".sx-clears .sx-danger")
    page.wait_for_selector(".sx-refusal-form:has-text('could not be cleared')")
    assert page.locator(".sx-photo").count() == 1
    page.unroute("**/gradio_api/queue/join*")
    page.click(".sx-back")
    clear(page)
    assert page.locator(".sx-photo").count() == 0
    seen.errors.clear()  # of the requests above
