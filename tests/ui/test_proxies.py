"""Behind a proxy: folders of addresses, names and schemes; nobody else is believed about them."""

from pathlib import Path

import httpx
import pytest
from echo_app import ask, echo
from proxies import proxied
from raw_server import running

from skindx.core.errors import UserError
from skindx.ui.http import users as module
from skindx.ui.http.asgi import App, Message, Receive, Send, respond, root_of
from skindx.ui.http.browser_rules import HostCheck
from skindx.ui.http.login import Gate
from skindx.ui.http.server import ConnectionTimeouts, Forwarding, checked_root
from skindx.ui.http.users import Users, add_user

PASSWORD = "correct horse battery"


async def told(scope: Message, receive: Receive, send: Send) -> None:
    """Answer with what stands in a request's scope."""
    if scope["type"] != "http":
        await echo_lifespan(scope, receive, send)
        return
    names = [value.decode() for key, value in scope["headers"] if key == b"x-forwarded-host"]
    said = f"{scope['path']} {root_of(scope)} {scope['scheme']} {names}"
    await respond(send, 200, said.encode())


async def echo_lifespan(scope: Message, receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def says(app: App, path: str = "/a", **headers: str) -> str:
    return ask(app, "GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()}).text


def test_nobody_but_the_proxy_is_believed() -> None:
    sent = {
        "x_forwarded_host": "evil.example",
        "x_forwarded_prefix": "/evil",
        "x_forwarded_proto": "https",
        "x_forwarded_for": "192.0.2.1",
        "forwarded": "host=evil.example",
    }
    assert says(Forwarding(told, None), **sent) == "/a  http []"
    assert says(Forwarding(told, "192.0.2.9"), **sent) == "/a  http []"
    # httpx's transport comes from 127.0.0.1.
    trusting = Forwarding(told, "127.0.0.1")
    assert says(trusting, **sent) == "/a /evil https ['evil.example/evil']"
    assert says(trusting, x_forwarded_host="skin.example") == "/a  http ['skin.example']"
    for prefix in ('/a"onload=', "//evil.example", "/../x", "evil", "/a b", "/" + "a" * 300):
        assert says(trusting, x_forwarded_prefix=prefix) == "/a  http []"


def test_a_folder_may_be_taken_off_the_path_or_left() -> None:
    app = Forwarding(told, None, "/skin")
    assert says(app, "/skin/v1/health") == "/v1/health /skin http ['here/skin']"
    assert says(app, "/v1/health") == "/v1/health /skin http ['here/skin']"
    assert says(app, "/skinny") == "/skinny /skin http ['here/skin']"
    answer = ask(app, "GET", "/skin?a=b")
    assert (answer.status_code, answer.headers["location"]) == (308, "/skin/?a=b")


def test_every_name_of_a_request_must_be_ours() -> None:
    app = Forwarding(HostCheck(echo, "127.0.0.1", ["here", "skin.example"]), "127.0.0.1")

    def status(name: str, host: str = "here") -> int:
        fields = {"x-forwarded-host": name, "host": host}
        return ask(app, "GET", "/", headers=fields).status_code

    assert status("skin.example") == status("skin.example, here") == 200
    for name in ("evil.example", "skin.example, evil.example", "evil.example, skin.example"):
        assert status(name) == 421
    assert status("skin.example", "evil.example") == 421


@pytest.mark.parametrize(
    ("given", "root"),
    [("", ""), ("/", ""), ("skin", "/skin"), ("/skin/", "/skin"), ("/a/b-c_d.e", "/a/b-c_d.e")],
)
def test_a_folder_is_checked(given: str, root: str) -> None:
    assert checked_root(given) == root
    for wrong in ("/a b", "https://skin.example/x", "/ä", "/a//b", "/../a", "/v1", "/login/x"):
        with pytest.raises(UserError, match="--root-path"):
            checked_root(wrong)


def test_a_login_through_a_name_of_the_proxy_is_no_foreign_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Forwarding(gate(tmp_path, monkeypatch), "127.0.0.1")
    fields = {"host": "127.0.0.1:7860", "x-forwarded-host": "skin.example"}
    for origin, status in (("https://skin.example", 303), ("https://evil.example", 403)):
        answer = ask(
            app, "POST", "/login", data={"name": "anna", "password": PASSWORD},
            headers=fields | {"origin": origin},
        )  # fmt: skip
        assert answer.status_code == status


def gate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr(module, "_COST", 1 << 4)
    add_user(folder / "users.json", "anna", PASSWORD)
    return Gate(told, Users(folder / "users.json"))


@pytest.mark.parametrize(
    ("kind", "root", "folder"),
    [
        ("nginx", "", "skin"),
        ("caddy", "/kept", "kept"),
        pytest.param("nginx", "/skin", "skin", marks=pytest.mark.long),
        pytest.param("nginx", "/kept", "kept", marks=pytest.mark.long),
        pytest.param("caddy", "", "skin", marks=pytest.mark.long),
        pytest.param("caddy", "/skin", "skin", marks=pytest.mark.long),
    ],
)
def test_people_log_in_below_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, root: str, folder: str
) -> None:
    app = gate(tmp_path, monkeypatch)
    with (
        running(app, ConnectionTimeouts(), "127.0.0.1", root) as port,
        proxied(kind, port, tmp_path, says_prefix=not root) as url,
        httpx.Client(base_url=url) as client,
    ):
        sent = client.get(f"/{folder}/", headers={"accept": "text/html"})
        assert (sent.status_code, sent.headers["location"]) == (303, f"/{folder}/login")
        assert f'action="/{folder}/login"' in client.get(f"/{folder}/login").text
        answer = client.post(
            f"/{folder}/login", data={"name": "anna", "password": PASSWORD},
            headers={"origin": url},
        )  # fmt: skip
        assert (answer.status_code, answer.headers["location"]) == (303, f"/{folder}/")
        assert f"Path=/{folder};" in answer.headers["set-cookie"]
        named = f"{url.removeprefix('http://')}/{folder}"
        assert client.get(f"/{folder}/v1").text == f"/v1 /{folder} http ['{named}']"
