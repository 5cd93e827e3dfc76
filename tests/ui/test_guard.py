"""Guard, limits and headers around an application of a few lines, without a server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from echo_app import ask, echo
from hypothesis import given
from hypothesis import strategies as st

from skindx.ui.http.asgi import USER, App, Message, Receive, Send, respond
from skindx.ui.http.browser_rules import Headers, route
from skindx.ui.http.guard import Guard
from skindx.ui.http.request_limits import BodyLimit, ConnectionQuota, Pace


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    folder = (tmp_path / "uploads").resolve()
    (folder / "hash").mkdir(parents=True)
    (folder / "hash/photo.jpg").write_bytes(b"photo")
    (folder / "link.jpg").symlink_to("/etc/passwd")
    (folder / "linked").symlink_to("/etc")
    return folder


def join(app: App, sent: object) -> int:
    return ask(app, "POST", "/gradio_api/queue/join", json=sent).status_code


def test_only_uploads_may_be_named(uploads: Path) -> None:
    guard = Guard(echo, uploads)
    own = str(uploads / "hash/photo.jpg")
    for sent in (
        {"data": [{"path": own, "url": "http://here/gradio_api/file=" + own}]},
        {"event_data": {"photos": [own], "patient": {"age": "4"}}},
        {"data": [None, "a note", {"path": None}]},
        {"data": [str(uploads / "hash/cleared.jpg")]},
    ):
        assert join(guard, sent) == 200, sent
    for path in (
        "/etc/passwd",
        f"{uploads}/../secret",
        f"{uploads}/link.jpg",
        f"{uploads}/linked/passwd",
        str(uploads),
        f"{uploads}x/photo.jpg",
        f"{own}\0.jpg",
    ):
        for sent in (
            {"data": [{"path": path, "meta": {"_type": "gradio.FileData"}}]},
            {"event_data": {"photos": [path]}},
            {"event_data": {"photos": [[path]]}},
            {"event_data": {"photos": path}},
            {"deep": [[{"a": [{"path": path}]}]]},
        ):
            assert join(guard, sent) == 400, sent
    for path in ("http://192.0.2.1/x", "relative.jpg", 7, ["x"], "file:///etc/passwd"):
        assert join(guard, {"data": [{"path": path}]}) == 400, path
        assert join(guard, {"event_data": {"photos": [path]}}) == (200 if path == 7 else 400), path
    assert join(guard, [own]) == 400


@pytest.mark.parametrize("note", ["/", "/ excised", "//", "/etc/passwd", "../x", "file:///x"])
def test_a_note_is_no_path(uploads: Path, note: str) -> None:
    sent = {"action": "confirm", "note": note, "patient": note, "lesion": note}
    assert join(Guard(echo, uploads), {"event_data": sent, "session_hash": "/a"}) == 200


def test_a_refusal_is_a_sentence_that_the_front_end_reads(uploads: Path) -> None:
    sent = {"event_data": {"photos": ["/etc/passwd"]}}
    answer = ask(Guard(echo, uploads), "POST", "/gradio_api/queue/join", json=sent)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("Only photos that were uploaded on this page")


ANYTHING = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["path", "data", "x"]), inner),
)


@given(ANYTHING)
def test_nothing_gets_through_with_a_foreign_path(value: object) -> None:
    guard = Guard(echo, Path("/nowhere/uploads"))
    for named in ({"path": "/etc/passwd"}, {"photos": [value, ["/etc/passwd"]]}):
        assert join(guard, {"data": [{"x": [value, named]}]}) == 400


def test_unneeded_routes_are_not_there(uploads: Path) -> None:
    guard = Guard(echo, uploads)
    for route_ in (
        "run/ask",
        "api/ask",
        "call/ask",
        "call/v2/ask",
        "component_server",
        "info",
        "proxy=http://x",
        "vibe-edit/",
        "process_recording",
        "runs",
        "uploads",
        "custom_component/1/a/b/c",
        "dev/reload",
    ):
        assert ask(guard, "GET", f"/gradio_api/{route_}").status_code == 404, route_
    for path in ("/monitoring", "/monitoring/summary"):
        assert ask(guard, "GET", path).status_code == 404
    shown = ask(guard, "GET", "/gradio_api/file=/etc/passwd")
    assert shown.headers["content-type"] == "image/svg+xml"
    assert ask(guard, "GET", "/gradio_api/queue/data?session_hash=a").status_code == 200


def test_an_upload_belongs_to_who_brought_it(uploads: Path) -> None:
    own = str(uploads / "hash/photo.jpg")

    async def taking(scope: Message, receive: Receive, send: Send) -> None:
        await respond(send, 200, json.dumps([own]).encode(), "application/json")

    guard = Guard(taking, uploads)

    def as_(user: str) -> App:
        async def named(scope: Message, receive: Receive, send: Send) -> None:
            await guard({**scope, USER: user}, receive, send)

        return named

    sent = {"event_data": {"photos": [own]}, "session_hash": "hers"}
    assert join(as_("anna"), sent) == 403  # nobody knows whose it is
    ask(as_("anna"), "POST", "/gradio_api/upload")
    assert join(as_("anna"), sent) == 200
    assert join(as_("ben"), sent | {"session_hash": "his"}) == 403
    ask(as_("ben"), "POST", "/gradio_api/upload")  # the very same photo
    assert join(as_("ben"), sent | {"session_hash": "his"}) == 200
    assert join(as_("ben"), {"session_hash": "hers"}) == 403
    for path in ("queue/data?session_hash=hers", "heartbeat/hers", "heartbeat/hers/"):
        assert ask(as_("ben"), "GET", f"/gradio_api/{path}").status_code == 403
        assert ask(as_("anna"), "GET", f"/gradio_api/{path}").status_code == 200


# Limits and headers


def test_bodies_are_counted_while_they_arrive() -> None:
    held = ConnectionQuota(5000, 5000)
    limit = BodyLimit(echo, lambda path: 1000, held)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield b"x" * 10

    assert ask(limit, "POST", "/", content=b"x" * 1000).json()[1] == 1000
    assert ask(limit, "POST", "/", content=b"x" * 1001).status_code == 413
    assert ask(limit, "POST", "/", content=chunks()).status_code == 413
    assert held.held == 0
    for shares, status in ((ConnectionQuota(5000, 900), 503), (ConnectionQuota(900, 5000), 429)):
        for body in (b"x" * 950, chunks()):
            answer = ask(BodyLimit(echo, lambda path: 1000, shares), "POST", "/", content=body)
            assert answer.status_code in (status, 413)
            assert shares.held == 0
        answer = ask(BodyLimit(echo, lambda path: 1000, shares), "POST", "/", content=b"x" * 950)
        assert answer.status_code == status
        assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    "pace",
    [
        Pace(silence_s=0.05),
        Pace(grace_s=0.3, bytes_per_s=1000),
        Pace(grace_s=1000, total_s=0.3),
    ],
    ids=["silence", "rate", "deadline"],
)
def test_a_body_that_does_not_come_on_is_given_up(pace: Pace) -> None:
    sent = 0

    async def trickle() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b"x"
        while True:
            await asyncio.sleep(60 if pace.silence_s < 1 else 0.01)
            sent += 1
            yield b"x"

    held = ConnectionQuota(5000, 5000)
    limit = BodyLimit(echo, lambda path: 1000, held, pace)
    assert ask(limit, "POST", "/", content=trickle()).status_code == 408
    assert sent < 100
    assert held.held == 0


@given(
    chunks=st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 60)), max_size=50),
    pace=st.builds(Pace, st.floats(1, 60), st.floats(1, 60), st.floats(1, 1e5), st.floats(1, 900)),
)
def test_no_pace_waits_longer_than_its_limits(chunks: list[tuple[int, float]], pace: Pace) -> None:
    came, waited_s = 0, 0.0
    for size, took_s in chunks:
        patience_s = pace.patience_s(came, waited_s)
        waited_s += max(0.0, min(took_s, patience_s))
        assert waited_s <= pace.total_s + 1e-6
        assert waited_s <= pace.grace_s + came / pace.bytes_per_s + 1e-6
        if took_s > patience_s:
            break
        came += size


def test_headers_stand_over_whatever_was_answered() -> None:
    async def careless(scope: Message, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"", headers={"content-security-policy": "default-src *"})

    answer = ask(Headers(careless), "GET", "/")
    assert answer.headers.get_list("content-security-policy") == [
        answer.headers["content-security-policy"]
    ]
    assert "'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    framed = ask(Headers(careless, ["https://host.example"]), "GET", "/")
    assert "frame-ancestors https://host.example" in framed.headers["content-security-policy"]
    assert "x-frame-options" not in framed.headers
    assert ask(Headers(careless), "GET", "/assets/a.js").headers.get("cache-control") is None


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/", "/"),
        ("/v1/diagnose", "/v1/diagnose"),
        ("/gradio_api/queue/join", "/gradio_api/queue/join"),
        ("/gradio_api/heartbeat/secret", "/gradio_api/heartbeat"),
        ("/gradio_api/file=/tmp/uploads/name.jpg", "/gradio_api/file"),
        ("/anna-photo.jpg", "/..."),
        ("/a\nfaked line", "/..."),
    ],
)
def test_the_log_holds_no_names(path: str, logged: str) -> None:
    assert route(path) == logged
