"""What a page of another site, or an odd request, gets from the server."""

import json
from pathlib import Path

import pytest
from echo_app import ask, echo
from hypothesis import given
from hypothesis import strategies as st

from skindx.casebook.case_names import checked_name
from skindx.core.errors import UserError
from skindx.ui.http import users as users_file
from skindx.ui.http.asgi import Message, Receive, Send, respond
from skindx.ui.http.browser_rules import Headers
from skindx.ui.http.guard import Guard
from skindx.ui.http.login import Gate
from skindx.ui.http.users import Users, add_user

PASSWORD = "long enough"


def test_the_headers_take_away_what_an_application_allows() -> None:
    async def open_to_all(scope: Message, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"", headers={"Access-Control-Allow-Origin": "*"})

    assert "access-control-allow-origin" not in ask(Headers(open_to_all), "GET", "/").headers


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(number=ODD)
def test_only_functions_of_the_page_are_passed_on(number: object) -> None:
    guard = Guard(echo, Path("/nowhere"), frozenset((0, 3)))
    sent = {"fn_index": number, "session_hash": "a"}
    answer = ask(guard, "POST", "/gradio_api/queue/join", content=json.dumps(sent))
    known = type(number) is int and number in (0, 3)
    assert answer.status_code == (200 if known else 400)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr(users_file, "_COST", 16)
    add_user(tmp_path / "users.json", "anna", PASSWORD)
    return Gate(echo, Users(tmp_path / "users.json"))


@pytest.mark.parametrize(
    "others",
    [
        "a b=c",
        "odd[1]=x",
        '{"json": 1}',
        "=",
        'quoted="un\\;finished',
        "theme=därk",
        "a@b.example=1",
        "skindx_session_old=1",
        ";;;",
    ],
)
def test_cookies_of_others_log_nobody_out(gate: Gate, others: str) -> None:
    form = {"name": "anna", "password": PASSWORD}
    session = ask(gate, "POST", "/login", data=form).headers["set-cookie"].partition(";")[0]
    for cookie in (f"{others}; {session}", f"{session}; {others}", f"{others};{session};x=y"):
        answer = ask(gate, "GET", "/x", headers={"cookie": cookie.encode()})
        assert answer.json() == ["anna", 0], cookie
    two = [("cookie", others.encode()), ("cookie", session.encode())]
    assert ask(gate, "GET", "/x", headers=two).json() == ["anna", 0]
    assert ask(gate, "GET", "/x", headers={"cookie": others.encode()}).status_code == 401


@pytest.mark.parametrize("char", ["\u202e", "\u2066", "\x1b", "\u200b"])
def test_a_name_with_an_unseen_character_gets_that_reason(char: str) -> None:
    with pytest.raises(UserError, match="invisible character") as caught:
        checked_name(f"P-0{char}17", "patient")
    assert char not in str(caught.value)
    assert "shorten it" not in str(caught.value)
    with pytest.raises(UserError, match="has 81 characters, so shorten it to at most 80"):
        checked_name("x" * 81, "patient")
