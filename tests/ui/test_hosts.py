"""Which names a server answers to, and where a case book needs a login."""

from pathlib import Path

import pytest
from echo_app import ask, echo
from hypothesis import example, given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.ui.http.browser_rules import HostCheck, host_name, is_loopback
from skindx.ui.serve import serve

LOOPBACK, LAN, NAMED = (
    HostCheck(echo, "127.0.0.1"),
    HostCheck(echo, "192.0.2.7"),
    HostCheck(echo, "127.0.0.1", ["skin.example.org", "2001:DB8::1"]),
)


def status(check: HostCheck, host: str) -> int:
    return ask(check, "GET", "/", headers={"host": host}).status_code


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:7860",
        "localhost.",
        "127.0.0.1:1",
        "127.8.8.8",
        "[::1]:7860",
        "[::1]",
    ],
)
def test_this_machine_is_answered_everywhere(host: str) -> None:
    for check in (LOOPBACK, LAN, NAMED):
        assert status(check, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7860",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "skin.example.org.evil.example",
        "[evil.example]",
        "[localhost]",
        "localhost:80@evil.example",
        "localhost, evil.example",
        "user@localhost",
        "localhost:7860:1",
        "",
        ".",
        ":7860",
        "127.1",
        "0x7f000001",
        "2130706433",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    for check in (LOOPBACK, LAN, NAMED):
        assert status(check, host) == 421


def test_an_address_is_answered_only_where_the_network_reaches_the_server() -> None:
    for host in ("192.0.2.7", "192.0.2.8:7860", "[2001:db8::2]"):
        assert status(LOOPBACK, host) == 421
        assert status(LAN, host) == 200
        assert status(HostCheck(echo, "0.0.0.0"), host) == 200
        assert status(HostCheck(echo, "::"), host) == 200


def test_allowed_names_are_answered() -> None:
    for host in ("skin.example.org", "Skin.Example.org:443", "[2001:db8:0::1]"):
        assert status(NAMED, host) == 200
        assert status(LOOPBACK, host) == 421
    refused = ask(LOOPBACK, "GET", "/", headers={"host": "skin.example.org"})
    assert "--allowed-host skin.example.org" in refused.json()["error"]


def test_two_host_headers_or_none_are_refused() -> None:
    for hosts in ([], [b"localhost", b"evil.example"], [b"localhost", b"localhost"]):
        sent = ask_raw([(b"host", host) for host in hosts])
        assert sent == 421


def ask_raw(fields: list[tuple[bytes, bytes]]) -> int:
    import asyncio

    statuses: list[int] = []

    async def send(message: object) -> None:
        statuses.append(message.get("status", 0))  # type: ignore[attr-defined]

    scope = {"type": "http", "method": "GET", "path": "/", "headers": fields}
    asyncio.run(LOOPBACK(scope, None, send))  # type: ignore[arg-type]
    return statuses[0]


@pytest.mark.parametrize(
    "name",
    ["https://skin.example.org", "skin.example.org:443", "a b", "", "*", "*.example.org", "a/b"],
)
def test_what_is_no_host_name_cannot_be_allowed(name: str) -> None:
    with pytest.raises(UserError, match="--allowed-host"):
        HostCheck(echo, "127.0.0.1", [name])


@example(".0")
@given(st.text(max_size=80))
def test_no_text_passes_for_this_machine(text: str) -> None:
    name = host_name(text)
    passes = LOOPBACK._is_ours(name)
    assert passes == (name == "localhost" or (_is_ip(name) and is_loopback(name)))


def _is_ip(name: str) -> bool:
    return all(char in "0123456789abcdef.:%" for char in name) and any(c in name for c in ".:")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.0.2.7", False)],
)  # fmt: skip
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    "options", [{"host": "0.0.0.0"}, {"host": "192.0.2.7"}, {"proxy": "127.0.0.1"}]
)
def test_a_case_book_that_others_reach_needs_a_login(
    tmp_path: Path, options: dict[str, str]
) -> None:
    with pytest.raises(UserError, match="--login FILE"):
        serve(tmp_path, casebook=str(tmp_path / "book.sqlite"), **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
