"""The server as a hostile client sees it; no browser needed."""

import io
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from served import Served, free_port, serving

from skindx.core.errors import UserError
from skindx.diagnosis.diagnose import MAX_BYTES
from skindx.ui.http.forms import FORM_BYTES
from skindx.ui.http.users import add_user, remove_user
from skindx.ui.serve import serve

NAMES = ("anna", "ben")
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def photo() -> bytes:
    """Return a photo that looks like skin with a spot."""
    rows, columns = np.mgrid[0:300, 0:400]
    noise = np.random.default_rng(0).normal(0, 6, (300, 400, 1))
    spot = ((rows - 150) ** 2 + (columns - 200) ** 2 < 50**2)[..., None]
    skin = np.where(spot, [110, 70, 60], [205, 160, 135]) + noise
    file = io.BytesIO()
    Image.fromarray(skin.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture(scope="module")
def locked(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve with a login; two people have one."""
    users = tmp_path_factory.mktemp("users") / "users.json"
    for name in (*NAMES, "carl"):
        add_user(users, name, PASSWORD)
    folder = tmp_path_factory.mktemp("locked")
    with serving(tiny_bundle, folder, login=str(users), workers=1) as server:
        yield server


def test_an_upload_is_gone_with_its_answer(served: Served, photo: bytes) -> None:
    path = served.upload(photo, "lesion.jpg")
    assert Path(path).read_bytes() == photo
    assert Path(path).parents[1].stat().st_mode & 0o077 == 0
    answer = served.answer(path, "gone")
    assert answer.success
    assert "sx-" in answer.said
    assert served.uploads == []
    assert not Path(path).parent.exists()


def test_nobody_reads_an_upload_back(served: Served, photo: bytes) -> None:
    path = served.upload(photo, "private.jpg")
    answer = httpx.get(f"{served.url}/gradio_api/file={path}")
    assert photo not in answer.content
    assert b"Looking at the photo" in answer.content
    served.answer(path, "read-back")


def test_a_file_of_the_server_is_neither_shown_nor_deleted(served: Served, photo: bytes) -> None:
    secret = served.folder / "secret.jpg"
    secret.write_bytes(photo)
    (uploads,) = served.folder.glob("skindx-uploads-*")
    link = uploads / "link.jpg"
    link.symlink_to(secret)
    for path in (secret, Path("/etc/passwd"), uploads / "../secret.jpg", link):
        answer = served.join(str(path), "secret")
        assert answer.status_code == 400
        assert "root:" not in answer.text
        shown = httpx.get(f"{served.url}/gradio_api/file={path}")
        assert b"root:" not in shown.content
        assert photo not in shown.content
        assert path.exists()
    link.unlink()
    secret.unlink()


def test_what_is_no_image_gets_a_sentence(served: Served) -> None:
    for name in ("notes.jpg", "../../up.png", "a<b>.jpg"):
        answer = served.answer(served.upload(b"not a picture", name), f"bad-{name}")
        assert answer.success
        assert "not a photo in" in answer.said
        assert "Traceback" not in answer.said
        assert served.uploads == []


def test_a_file_over_the_limit_is_refused_and_not_kept(served: Served) -> None:
    files = {"files": ("big.jpg", bytes(MAX_BYTES + 1))}
    assert httpx.post(f"{served.url}/gradio_api/upload", files=files).status_code == 413
    assert served.uploads == []


@pytest.mark.parametrize("body", [b"[", b"[" * 100_000, b" " * 1_000_000])
def test_a_hostile_request_is_refused(served: Served, body: bytes) -> None:
    answer = httpx.post(f"{served.url}/gradio_api/queue/join", content=body)
    assert answer.status_code == 400


def test_every_answer_bears_the_headers(served: Served) -> None:
    for path, status in (("/", 200), ("/v1/health", 200), ("/none", 404), ("/monitoring", 404)):
        answer = httpx.get(served.url + path)
        assert answer.status_code == status
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
    for route in ("info", "openapi.json", "runs", "proxy=http://192.0.2.1/", "api/ask"):
        assert httpx.get(f"{served.url}/gradio_api/{route}").status_code == 404


def test_the_interface_answers(served: Served, photo: bytes) -> None:
    with served.client() as client:
        files = [("photo", ("private-name.jpg", photo)), ("photo", ("b.jpg", photo))]
        reported = {"age": "54", "site": "back", "include": "views"}
        answer = client.post("/v1/diagnose", files=files, data=reported)
        assert answer.status_code in (200, 422), answer.text
        said = answer.json()
        if answer.status_code == 200:
            assert said["diagnosis"]["patient"]["age"] == 54
            assert len(said["views"]) == 2
            assert "pdf" not in said
        bad = client.post("/v1/diagnose", files={"photo": ("a.jpg", b"text")})
        assert bad.status_code == 422
        assert bad.json()["error"].endswith(".")
        health = client.get("/v1/health").json()
        assert health["status"] == "ok"
        assert health["ready"] == health["workers"]
        metrics = client.get("/v1/metrics")
        families = {family.name: family for family in text_string_to_metric_families(metrics.text)}
        cases = families["skindx_cases"].samples
        assert sum(case.value for case in cases if case.labels["way"] == "api") >= 2
        described = client.get("/openapi.json").json()
        assert set(described["paths"]) == {
            "/v1/diagnose",
            "/v1/health",
            "/v1/metrics",
            "/v1/scan",
            "/v1/scan/ruler",
            "/v1/scan/{scan}",
            "/v1/scan/{scan}/page",
        }
        assert client.get("/v1/scan/guessed").status_code == 404
        docs = client.get("/docs")
        assert "/v1/diagnose" in docs.text
        assert "src=" not in docs.text
        assert client.get("/healthz").text == "ok"
    assert "private-name" not in served.stderr()
    assert not [path for path in served.folder.glob("**/*") if path.suffix == ".jpg"]


def test_a_case_of_too_many_bytes_is_refused_while_it_arrives(served: Served) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'--x\r\ncontent-disposition: form-data; name="photo"; filename="a"\r\n\r\n'
        while sent < 4 * FORM_BYTES:
            sent += 1 << 20
            yield bytes(1 << 20)

    kind = {"content-type": "multipart/form-data; boundary=x"}
    with served.client() as client:
        try:
            answer = client.post("/v1/diagnose", content=endless(), headers=kind)
            assert answer.status_code == 413
            assert "MB" in answer.json()["error"]
        except httpx.WriteError:
            pass  # the server closed before it was all sent, which is as good
        assert sent < 2 * FORM_BYTES
    address = urlsplit(served.url)
    with socket.create_connection((address.hostname or "", address.port or 0), 30) as raw:
        length = f"Content-Length: {FORM_BYTES + 1}"
        raw.sendall(f"POST /v1/diagnose HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}\r\n\r\n".encode())
        assert raw.recv(1000).startswith(b"HTTP/1.1 413")


def test_with_a_login_everything_is_behind_it(locked: Served, photo: bytes) -> None:
    with locked.client() as client:
        for path in ("/", "/openapi.json", "/docs", "/v1/health", "/v1/metrics", "/config"):
            assert client.get(path).status_code == 401, path
        assert client.get("/assets/index.js").status_code == 401
        assert client.post("/v1/diagnose", files={"photo": photo}).status_code == 401
        assert client.post("/gradio_api/upload", files={"files": photo}).status_code == 401
        seen = client.get("/", headers={"accept": "text/html"})
        assert (seen.status_code, seen.headers["location"]) == (303, "/login")
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/health", auth=("anna", PASSWORD)).status_code == 200
        assert client.get("/v1/health", auth=("anna", "wrong password")).status_code == 401
    with locked.client("anna", PASSWORD) as anna:
        (cookie,) = anna.cookies.jar
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "Strict"
        assert not cookie.secure  # no proxy was named that could tell of TLS
        assert anna.get("/").status_code == 200
        assert anna.get("/openapi.json").status_code == 200
        foreign = {"origin": "https://evil.example"}
        assert anna.post("/v1/diagnose", files={"photo": photo}, headers=foreign).status_code == 403
        token = cookie.value or ""
        assert anna.post("/logout").status_code == 303
        stolen = {"cookie": f"skindx_session={token}"}
        assert httpx.get(locked.url, headers=stolen).status_code == 401


def test_nobody_opens_what_is_anothers(locked: Served, photo: bytes) -> None:
    with locked.client("anna", PASSWORD) as anna, locked.client("ben", PASSWORD) as ben:
        path = locked.upload(photo, "annas.jpg", anna)
        assert locked.join(path, "bens", ben).status_code == 403
        assert Path(path).exists()
        assert photo not in ben.get(f"/gradio_api/file={path}").content
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
    users = next(locked.folder.parent.glob("users*/users.json"))
    with locked.client("carl", PASSWORD) as carl:
        assert carl.get("/v1/health").status_code == 200
        remove_user(users, "carl")
        assert carl.get("/v1/health").status_code == 401


def test_an_address_that_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port} .*another --port"):
            serve(tmp_path, port=port)
    with pytest.raises(UserError, match="port 0 does not exist"):
        serve(tmp_path, port=0)
    with pytest.raises(UserError, match="--host"):
        serve(tmp_path, host="192.0.2.7", port=port)


def test_an_altered_bundle_is_not_served(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, copy)
    (copy / "taxonomy.yaml").write_text("name: other")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(UserError, match="altered"):
        serve(copy, port=port)


def test_a_level_that_the_bundle_lacks_is_refused_before_anything_starts(tiny_bundle: Path) -> None:
    with pytest.raises(UserError, match=r"no threshold for a miss rate of 0.05"):
        serve(tiny_bundle, port=free_port(), miss_rate=0.05)
