"""Users and login around an application of a few lines, without a server."""

import asyncio
from pathlib import Path

import httpx
import pytest
from echo_app import ask, echo

from skindx.core.errors import UserError
from skindx.ui.http import users as users_file
from skindx.ui.http.asgi import App, Message, Receive, Send
from skindx.ui.http.login import FREE, LIFE_S, Gate, RememberedPasswords, Sessions
from skindx.ui.http.users import Users, add_user, read_users, remove_user

PASSWORD = "long enough"


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_file, "_COST", 16)


# Users


def test_a_file_of_users(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    with pytest.raises(UserError, match="skindx user add"):
        Users(file)
    add_user(file, "anna", PASSWORD)
    add_user(file, "ben", PASSWORD)
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    assert PASSWORD not in text
    assert len(set(read_users(file).values())) == 2  # the same password, another salt
    users = Users(file)
    assert users.check("anna", PASSWORD)
    for name, password in (("anna", "long enougH"), ("nobody", PASSWORD), ("anna", "x" * 5000)):
        assert not users.check(name, password)
    add_user(file, "anna", "another password")
    assert not users.check("anna", PASSWORD)
    assert users.check("anna", "another password")
    remove_user(file, "anna")
    assert not users.check("anna", "another password")
    with pytest.raises(UserError, match="no user 'anna'"):
        remove_user(file, "anna")


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [("a/b", PASSWORD, "name"), ("", PASSWORD, "name"), ("anna", "short", "password")],
)
def test_what_cannot_be_a_user(tmp_path: Path, name: str, password: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        add_user(tmp_path / "users.json", name, password)
    assert not (tmp_path / "users.json").exists()


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    add_user(file, "anna", PASSWORD)
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        Users(file)
    file.chmod(0o600)
    file.write_text("[]")
    with pytest.raises(UserError, match="not a valid file of users"):
        Users(file)


def test_an_unknown_name_costs_a_hash_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_user(tmp_path / "users.json", "anna", PASSWORD)
    users = Users(tmp_path / "users.json")
    hashed: list[int] = []
    scrypt = users_file._scrypt

    def count(password: str, salt: bytes, *costs: int) -> bytes:
        hashed.append(costs[0])
        return scrypt(password, salt, *costs)

    monkeypatch.setattr(users_file, "_scrypt", count)
    users.check("anna", "wrong one")
    users.check("nobody", "wrong one")
    assert len(hashed) == 2
    assert len(set(hashed)) == 1


# Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_sessions_end() -> None:
    clock, known = Clock(), {"anna": "hash", "ben": "other"}
    sessions = Sessions(clock)
    first, second = sessions.begin("anna", "hash"), sessions.begin("anna", "hash")
    assert first != second
    assert sessions.user(first, known) == "anna"
    assert sessions.user(first[:-1], known) == sessions.user("", known) == ""
    sessions.end(first)
    assert sessions.user(first, known) == ""
    clock.now += LIFE_S + 1
    assert sessions.user(second, known) == ""
    for later in ({"anna": "hash"}, {"anna": "hash", "ben": "a new password's"}):
        third = sessions.begin("ben", "other")
        assert sessions.user(third, later) == ""
        assert sessions.user(third, known) == ""  # it does not come back


def test_a_remembered_password_goes_with_its_hash() -> None:
    clock = Clock()
    remembered = RememberedPasswords(clock)
    remembered.add("anna", PASSWORD, "hash")
    assert remembered.holds("anna", PASSWORD, "hash")
    assert not remembered.holds("anna", PASSWORD, "new hash")
    assert not remembered.holds("ben", PASSWORD, "hash")
    clock.now += 1000
    assert not remembered.holds("anna", PASSWORD, "hash")


# Gate


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    add_user(tmp_path / "users.json", "anna", PASSWORD)
    return Gate(echo, Users(tmp_path / "users.json"), lambda path: path == "/free")


def test_the_gate_lets_in_who_has_a_password(gate: Gate) -> None:
    refused = ask(gate, "GET", "/v1/health")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    of_a_script = ask(gate, "GET", "/v1/health", headers={"sec-fetch-mode": "cors"})
    assert of_a_script.headers["www-authenticate"].startswith("Session ")
    assert ask(gate, "GET", "/free").json() == ["", 0]
    assert ask(gate, "GET", "/x", auth=("anna", PASSWORD)).json() == ["anna", 0]
    for broken in ("Basic ", "Basic %%%", "Basic YQ==", "Bearer x"):
        answer = ask(gate, "GET", "/x", headers={"authorization": broken})
        assert answer.status_code == 401


def test_wrong_passwords_are_throttled_even_side_by_side(gate: Gate) -> None:
    async def many() -> list[int]:
        transport = httpx.ASGITransport(app=gate)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            form = {"name": "anna", "password": "wrong one"}
            tries = [client.post("/login", data=form) for _ in range(20)]
            return [attempt.status_code for attempt in await asyncio.gather(*tries)]

    codes = asyncio.run(many())
    assert codes.count(401) == FREE
    assert codes.count(429) == 20 - FREE
    right = ask(gate, "POST", "/login", data={"name": "anna", "password": PASSWORD})
    assert right.status_code == 429
    assert int(right.headers["retry-after"]) > 0


def log_in(gate: Gate, name: str = "anna", password: str = PASSWORD) -> dict[str, str]:
    answer = ask(gate, "POST", "/login", data={"name": name, "password": password})
    assert answer.status_code == 303
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_a_session_ends_with_its_password_and_its_user(gate: Gate, tmp_path: Path) -> None:
    file, other = tmp_path / "users.json", "another password"
    add_user(file, "ben", PASSWORD)
    anna, ben = log_in(gate), log_in(gate, "ben")
    assert ask(gate, "GET", "/x", headers=anna).json() == ["anna", 0]
    add_user(file, "anna", other)
    assert ask(gate, "GET", "/x", headers=anna).status_code == 401
    assert ask(gate, "GET", "/x", headers=ben).json() == ["ben", 0]
    assert ask(gate, "GET", "/x", auth=("anna", PASSWORD)).status_code == 401
    anna = log_in(gate, password=other)
    remove_user(file, "anna")
    add_user(file, "anna", other)  # the same name and password: perhaps another person
    assert ask(gate, "GET", "/x", headers=anna).status_code == 401


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"anna": 7}', '{"anna": "plain text"}', "[" * 100_000, b"\xff\xfe", None],
    ids=["empty", "cut off", "list", "number", "plain", "deep", "bytes", "missing"],
)
def test_a_damaged_file_of_users_is_one_sentence(
    gate: Gate, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | bytes | None
) -> None:
    file, session = tmp_path / "users.json", log_in(gate)
    whole = file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    form = {"name": "anna", "password": PASSWORD}
    answers = [
        ask(gate, "GET", "/x", headers=session),
        ask(gate, "GET", "/x", auth=("anna", PASSWORD)),
        ask(gate, "POST", "/login", data=form),
        ask(gate, "GET", "/", headers={"accept": "text/html"}),
    ]
    for answer in answers:
        assert answer.status_code == 503
        assert "cannot read its file of users" in answer.text
        assert str(tmp_path) not in answer.text
    assert "<form" in answers[-1].text
    assert ask(gate, "GET", "/free").status_code == 200
    reported = [record for record in caplog.records if "users.json" in record.getMessage()]
    assert len(reported) == 1  # for the operator, and not for each request
    file.write_bytes(whole)
    file.chmod(0o600)
    assert ask(gate, "GET", "/x", headers=session).json() == ["anna", 0]


def test_nobody_is_locked_out_from_elsewhere(gate: Gate) -> None:
    def from_(address: str) -> App:
        async def named(scope: Message, receive: Receive, send: Send) -> None:
            await gate({**scope, "client": (address, 1)}, receive, send)

        return named

    wrong = {"name": "anna", "password": "wrong one"}
    tried = [ask(from_("192.0.2.1"), "POST", "/login", data=wrong) for _ in range(FREE + 1)]
    assert [answer.status_code for answer in tried] == [401] * FREE + [429]
    assert ask(from_("192.0.2.2"), "GET", "/x", auth=("anna", PASSWORD)).json() == ["anna", 0]
    for name in ("a", "b", "c", "d", "e", "f"):
        ask(from_("192.0.2.3"), "POST", "/login", data={"name": name, "password": "wrong one"})
    right = {"name": "anna", "password": PASSWORD}
    assert ask(from_("192.0.2.3"), "POST", "/login", data=right).status_code == 303


def test_the_login_page_says_nothing_of_names(gate: Gate) -> None:
    said = [
        ask(gate, "POST", "/login", data={"name": name, "password": "wrong one"})
        for name in ("anna", "nobody", "<script>")
    ]
    assert len({path.text for path in said}) == 1
    assert {path.status_code for path in said} == {401}
    assert "<script" not in said[0].text
    assert ask(gate, "POST", "/login", content=b"x" * 10_000).status_code == 401


def test_the_cookie_is_secure_behind_tls(gate: Gate) -> None:
    form = {"name": "anna", "password": PASSWORD}

    async def behind(scope: Message, receive: Receive, send: Send) -> None:
        await gate({**scope, "scheme": "https"}, receive, send)

    cookie = ask(behind, "POST", "/login", data=form).headers["set-cookie"]
    assert cookie.endswith("Secure")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in ask(gate, "POST", "/login", data=form).headers["set-cookie"]


def test_another_sites_page_is_refused_with_and_without_login(gate: Gate) -> None:
    for guarded in (gate, Gate(echo, None)):
        for origin in ("https://evil.example", "null", "http://here.evil.example"):
            answer = ask(guarded, "POST", "/free", headers={"origin": origin})
            assert answer.status_code == 403
        assert ask(guarded, "POST", "/free", headers={"origin": "http://here"}).status_code == 200
