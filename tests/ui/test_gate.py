"""Users and login around an application of a few lines, without a server."""

import asyncio
from pathlib import Path

import httpx
import pytest
from echo_app import ask, echo

from skindx.errors import UserError
from skindx.ui.asgi import Message, Receive, Send
from skindx.ui.login import users as users_file
from skindx.ui.login.gate import Gate
from skindx.ui.login.sessions import LIFE_S, Remembered, Sessions
from skindx.ui.login.throttle import FREE, Throttle
from skindx.ui.login.users import Users, add_user, read_users, remove_user

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
    with pytest.raises(UserError, match="no file of users"):
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


# Throttle and sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_patience_grows_and_is_regained() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    waits = []
    for _ in range(FREE + 12):
        assert throttle.wait_s("name anna") == 0
        throttle.failed("name anna")
        waits.append(throttle.wait_s("name anna"))
        clock.now += waits[-1]
    assert waits[: FREE - 1] == [0] * (FREE - 1)
    later = waits[FREE - 1 :]
    assert later == sorted(later)
    assert later[0] < later[3] < later[-1] == later[-2]
    throttle.failed("name anna")
    assert throttle.wait_s("address 1", "name anna") > 0
    assert throttle.wait_s("address 1", "name ben") == 0
    throttle.succeeded("name anna")
    assert throttle.wait_s("name anna") == 0


def test_sessions_end() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    first, second = sessions.begin("anna"), sessions.begin("anna")
    assert first != second
    assert sessions.user(first) == "anna"
    assert sessions.user(first[:-1]) == sessions.user("") == ""
    sessions.end(first)
    assert sessions.user(first) == ""
    clock.now += LIFE_S + 1
    assert sessions.user(second) == ""
    third = sessions.begin("ben")
    sessions.end_all("ben")
    assert sessions.user(third) == ""


def test_a_remembered_password_goes_with_its_hash() -> None:
    clock = Clock()
    remembered = Remembered(clock)
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
    assert ask(gate, "GET", "/v1/health").status_code == 401
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
            return [each.status_code for each in await asyncio.gather(*tries)]

    codes = asyncio.run(many())
    assert codes.count(401) == FREE
    assert codes.count(429) == 20 - FREE
    right = ask(gate, "POST", "/login", data={"name": "anna", "password": PASSWORD})
    assert right.status_code == 429
    assert int(right.headers["retry-after"]) > 0


def test_the_login_page_says_nothing_of_names(gate: Gate) -> None:
    said = [
        ask(gate, "POST", "/login", data={"name": name, "password": "wrong one"})
        for name in ("anna", "nobody", "<script>")
    ]
    assert len({each.text for each in said}) == 1
    assert {each.status_code for each in said} == {401}
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
    for each in (gate, Gate(echo, None)):
        for origin in ("https://evil.example", "null", "http://here.evil.example"):
            answer = ask(each, "POST", "/free", headers={"origin": origin})
            assert answer.status_code == 403
        assert ask(each, "POST", "/free", headers={"origin": "http://here"}).status_code == 200
