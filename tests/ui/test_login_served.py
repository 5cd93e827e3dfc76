"""The login on a real server: below a folder, as app/compose.yaml serves it, and behind Caddy."""

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from proxies import site
from served import Served, serving

from skindx.ui.http.users import add_user, remove_user

PASSWORD = "correct horse battery"
PHOTO = b"a photo"
QUICK = (sys.executable, str(Path(__file__).parents[1] / "support/quick_worker.py"))
"""Who may ask is not decided by what answers: this worker has no network."""


@pytest.fixture(scope="module")
def locked(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve with a login; three people have one."""
    folder = tmp_path_factory.mktemp("locked")
    for name in ("anna", "ben", "carl"):
        add_user(folder / "users.json", name, PASSWORD)
    options = {
        "login": str(folder / "users.json"), "proxy": "127.0.0.1", "root_path": "/skin",
        "allowed_hosts": ["localhost"], "workers": 1, "worker_command": QUICK,
    }  # fmt: skip
    with serving(tiny_bundle, folder, **options) as server:
        yield server


def test_with_a_login_everything_is_behind_it(locked: Served) -> None:
    with locked.client() as client:
        for path in ("/", "/openapi.json", "/docs", "/v1/health", "/v1/metrics", "/config"):
            assert client.get(path).status_code == 401, path
        assert client.get("/assets/index.js").status_code == 401
        assert client.post("/v1/diagnose", files={"photo": PHOTO}).status_code == 401
        assert client.post("/gradio_api/upload", files={"files": PHOTO}).status_code == 401
        seen = client.get("/", headers={"accept": "text/html"})
        assert (seen.status_code, seen.headers["location"]) == (303, "/skin/login")
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/health", auth=("anna", PASSWORD)).status_code == 200
        assert client.get("/v1/health", auth=("anna", "wrong password")).status_code == 401
    with locked.client("anna", PASSWORD) as anna:
        (cookie,) = anna.cookies.jar
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "Strict"
        assert not cookie.secure  # the proxy told nothing of TLS
        assert anna.get("/").status_code == 200
        assert anna.get("/openapi.json").status_code == 200
        foreign = {"origin": "https://evil.example"}
        assert anna.post("/v1/diagnose", files={"photo": PHOTO}, headers=foreign).status_code == 403
        token = cookie.value or ""
        assert anna.post("/logout").status_code == 303
        stolen = {"cookie": f"skindx_session={token}"}
        assert httpx.get(f"{locked.url}/", headers=stolen).status_code == 401


def test_nobody_opens_what_is_anothers(locked: Served) -> None:
    with locked.client("anna", PASSWORD) as anna, locked.client("ben", PASSWORD) as ben:
        path = locked.upload(PHOTO, "annas.jpg", anna)
        assert locked.join(path, "bens", ben).status_code == 403
        assert Path(path).exists()
        assert PHOTO not in ben.get(f"/gradio_api/file={path}").content
        assert locked.join(path, "annas", anna).status_code == 200
        heard = ben.get("/gradio_api/queue/data", params={"session_hash": "annas"})
        assert heard.status_code == 403
        assert ben.get("/gradio_api/heartbeat/annas").status_code == 403
        assert locked.join(path, "annas", ben).status_code == 403
        with anna.stream(
            "GET", "/gradio_api/queue/data", params={"session_hash": "annas"}
        ) as events:
            assert any("process_completed" in line for line in events.iter_lines())


def test_whoever_is_taken_out_is_out_at_once(locked: Served) -> None:
    with locked.client("carl", PASSWORD) as carl:
        assert carl.get("/v1/health").status_code == 200
        remove_user(locked.folder / "users.json", "carl")
        assert carl.get("/v1/health").status_code == 401


def test_the_site_of_the_caddyfile_lets_nobody_in_without_a_login(
    locked: Served, tmp_path: Path
) -> None:
    photo = {"photo": PHOTO}
    with (
        site(locked.port, tmp_path) as (url, trust),
        httpx.Client(base_url=url, verify=trust, timeout=120, trust_env=False) as client,
    ):
        for path, to in (("/", "/skin/"), ("/skin", "/skin/"), ("/skin/", "/skin/login")):
            sent = client.get(path, headers={"accept": "text/html"})
            assert (path, sent.status_code // 100, sent.headers["location"]) == (path, 3, to)
        for asked in (url + "/skin", locked.url):
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
