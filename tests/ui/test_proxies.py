"""Behind a proxy: folders of addresses, names and schemes; nobody else is believed about them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo_app import ask, echo
from proxies import proxied, site
from raw_server import Client, running
from served import Served, serving
from skin_photo import skin_photo
from windows import Seen

from skindx.core.errors import UserError
from skindx.ui.http import users as module
from skindx.ui.http.asgi import App, Message, Receive, Send, respond, root_of
from skindx.ui.http.browser_rules import HostCheck
from skindx.ui.http.login import Gate
from skindx.ui.http.server import Forwarding, Patience, checked_root
from skindx.ui.http.users import Users, add_user

PASSWORD = "correct horse battery"
PHOTO = skin_photo(800, 600)
KINDS = ("nginx", "caddy")


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("root", "folder"), [("", "skin"), ("/skin", "skin"), ("/kept", "kept")])
def test_people_log_in_below_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, root: str, folder: str
) -> None:
    app = gate(tmp_path, monkeypatch)
    with (
        running(app, Patience(), "127.0.0.1", root) as port,
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


@pytest.fixture(params=KINDS)
def proxy(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[str]:
    with proxied(request.param, int(served.url.rpartition(":")[2]), tmp_path) as url:
        yield url


@pytest.mark.browser
def test_a_photo_is_answered_below_a_folder(
    proxy: str, opened: Callable[..., Seen], tmp_path: Path
) -> None:
    (tmp_path / "photo.jpg").write_bytes(PHOTO)
    seen = opened(url=f"{proxy}/skin/")
    page, wrong = seen.page, []
    page.on("response", lambda got: wrong.append(got.url) if got.status >= 400 else None)
    page.set_input_files("#sx-file", tmp_path / "photo.jpg")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow, .sx-problem, .sx-refused")
    assert wrong == []
    seen.errors.clear()  # a browser asks the host for /favicon.ico, which is not ours here


def test_the_site_of_the_caddyfile_lets_nobody_in_without_a_login(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    add_user(tmp_path / "users.json", "anna", PASSWORD)
    options = {
        "login": str(tmp_path / "users.json"), "proxy": "127.0.0.1", "root_path": "/skin",
        "allowed_hosts": ["localhost"], "workers": 1,
    }  # fmt: skip
    photo = {"photo": PHOTO}
    (tmp_path / "server").mkdir()
    with (
        serving(tiny_bundle, tmp_path / "server", **options) as server,
        site(int(server.url.rpartition(":")[2]), tmp_path) as (url, trust),
        httpx.Client(base_url=url, verify=trust, timeout=120, trust_env=False) as client,
    ):
        for path, to in (("/", "/skin/"), ("/skin", "/skin/"), ("/skin/", "/skin/login")):
            sent = client.get(path, headers={"accept": "text/html"})
            assert (path, sent.status_code // 100, sent.headers["location"]) == (path, 3, to)
        for asked in (url + "/skin", server.url):
            assert client.post(f"{asked}/v1/diagnose", files=photo).status_code == 401
        wrong = client.post("/skin/login", data={"name": "anna", "password": "a guess"})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)

        known = client.post(
            "/skin/login", data={"name": "anna", "password": PASSWORD}, headers={"origin": url}
        )
        assert (known.status_code, known.headers["location"]) == (303, "/skin/")
        cookie = known.headers["set-cookie"]
        assert "Path=/skin;" in cookie
        assert "Secure" in cookie  # skindx learned from Caddy that people use https
        assert "Looking at the photo" in client.get("/skin/").text
        answer = client.post("/skin/v1/diagnose", files=photo)
        assert answer.status_code == 200, answer.text
        assert answer.json()["diagnosis"]["notice"]


# Methods, slashes and odd requests, on the real server


def test_methods_and_slashes_of_our_routes(served: Served) -> None:
    def ask_for(method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, served.url + path, timeout=60, **options)

    for path in ("/healthz", "/v1/health", "/v1/health/", "/docs", "/", "/openapi.json"):
        answer = ask_for("HEAD", path)
        assert (path, answer.status_code, answer.content) == (path, 200, b"")
    for method, path, allowed in (
        ("GET", "/v1/diagnose", "OPTIONS, POST"),
        ("PUT", "/v1/diagnose/", "OPTIONS, POST"),
        ("POST", "/v1/health", "GET, HEAD, OPTIONS"),
        ("DELETE", "/healthz", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/scan", "OPTIONS, POST"),
        ("POST", "/v1/scan/abc", "DELETE, GET, HEAD, OPTIONS"),
        ("GET", "/report", "OPTIONS, POST"),
        ("PATCH", "/login", "GET, HEAD, OPTIONS, POST"),
        ("GET", "/gradio_api/upload", "OPTIONS, POST"),
    ):
        answer = ask_for(method, path)
        assert (path, answer.status_code, answer.headers.get("allow")) == (path, 405, allowed)
        assert answer.json()["error"].endswith(".")
        options = ask_for("OPTIONS", path)
        assert (options.status_code, options.headers["allow"]) == (204, allowed)
        assert not any(name.startswith("access-control") for name in options.headers)
    assert ask_for("OPTIONS", "/").status_code == 204
    assert ask_for("GET", "/none").status_code == 404
    for path in ("/v1/scan/", "/v1/scan/ruler", "/v1/scan/ruler/", "/v1/diagnose/"):
        answer = ask_for("POST", path, files={"photo": bytes(2 << 20)})
        assert answer.status_code not in (404, 405, 413), path


def test_forms_as_other_clients_write_them(served: Served) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="photo"\r\n\r\n%b\r\n--x--\r\n' % PHOTO
    for kind in ("Multipart/Form-Data; Boundary=x", "multipart/form-data; boundary=x"):
        answer = httpx.post(
            f"{served.url}/v1/diagnose", content=part, headers={"content-type": kind}, timeout=60
        )
        assert answer.status_code in (200, 422), answer.text
        assert "form" not in answer.json().get("error", "")


def test_requests_that_are_no_browser_s(served: Served) -> None:
    port = int(served.url.rpartition(":")[2])

    def said(*lines: str) -> bytes:
        client = Client(port)
        client.send("\r\n".join([*lines, "", ""]).encode())
        return client.read_all()

    for request in ("GET /healthz HTTP/1.0", "HEAD /healthz HTTP/1.0", "OPTIONS / HTTP/1.0"):
        assert said(request).startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")), request
    assert said("GET /healthz HTTP/1.1").startswith(b"HTTP/1.1 400")
    host = "Host: 127.0.0.1"
    answer = said("POST /v1/diagnose HTTP/1.1", host, "Origin: http://[", "Content-Length: 0")
    assert answer.startswith(b"HTTP/1.1 403")
    both = said(
        "POST /v1/diagnose HTTP/1.1", host, "Content-Length: 4", "Transfer-Encoding: chunked",
        "", "0",
    )  # fmt: skip
    assert both.startswith(b"HTTP/1.1 400"), both
    assert b"Content-Length" in both
    assert b"connection: close" in both.lower()
