"""A real server as a hostile, an odd or a foreign client sees it; no browser needed."""

import io
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from network_guard import calls_in
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from raw_server import Client
from served import Served, free_port
from skin_photo import skin_photo

from skindx.core.errors import UserError
from skindx.diagnosis.photo_checks import MAX_BYTES
from skindx.ui.http.answer_rows import PATH as ROW
from skindx.ui.http.forms import FORM_BYTES
from skindx.ui.serve import serve
from skindx.ui.uploads import ROUTE as UPLOAD


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
        files = [("photo", ("private-name.jpg", photo)), ("photo", ("b.jpg", skin_photo(seed=9)))]
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


def test_no_other_origin_is_allowed_to_read(served: Served) -> None:
    for origin in ("http://localhost:3000", "http://127.0.0.1:3000", "https://evil.example"):
        for method in ("GET", "OPTIONS"):
            for path in ("/", "/config", "/gradio_api/queue/join", "/v1/health"):
                answer = httpx.request(
                    method,
                    served.url + path,
                    headers={"origin": origin, "access-control-request-method": "POST"},
                )
                named = [name for name in answer.headers if name.startswith("access-control-")]
                assert named == [], (origin, method, path)


def test_without_a_login_there_is_nothing_to_log_out_of(served: Served) -> None:
    for path in ("/logout", "/logout/", "/login", "/login/"):
        for method in ("GET", "POST"):
            answer = httpx.request(method, served.url + path)
            assert answer.status_code == 404
            assert "location" not in answer.headers


def test_a_function_that_is_not_there_is_a_wrong_request(served: Served) -> None:
    for number in (-1, -(10**30), 999, 10**30, 1.5, True, "0", "ask", None, [0], {"a": 1}):
        body = {"data": [], "fn_index": number, "session_hash": "doors"}
        answer = httpx.post(f"{served.url}/gradio_api/queue/join", json=body)
        assert answer.status_code == 400, number
    assert "Traceback" not in served.stderr()


def test_a_rebound_name_reads_nothing_of_a_real_server(served: Served) -> None:
    for path in ("/", "/config", "/v1/health", "/gradio_api/queue/data?session_hash=a"):
        answer = httpx.get(served.url + path, headers={"host": "evil.example:7860"})
        assert answer.status_code == 421
        assert answer.headers["x-content-type-options"] == "nosniff"
    port = served.url.rpartition(":")[2]
    assert httpx.get(f"http://localhost:{port}/v1/health").status_code == 200


def test_a_real_server_bounds_what_one_client_leaves_there(served: Served) -> None:
    photo = bytes(15 << 20)
    with served.client() as client:
        statuses = [
            client.post(UPLOAD, files={"files": ("a.jpg", photo)}).status_code for _ in range(10)
        ]
        assert statuses == [200] * 8 + [429] * 2
        assert sum(path.stat().st_size for path in served.uploads) <= 128 << 20
        assert client.get("/v1/health").status_code == 200
    for path in served.uploads:
        path.unlink()


def test_an_upload_that_breaks_off_leaves_nothing_on_a_real_server(served: Served) -> None:
    def half() -> Iterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="files"; filename="a"\r\n\r\n'
        yield bytes(1 << 20)
        raise ConnectionError

    with served.client() as client, pytest.raises(ConnectionError):
        client.post(
            UPLOAD, content=half(), headers={"content-type": "multipart/form-data; boundary=x"}
        )
    with served.client() as client:
        client.post(UPLOAD, files={"other": ("a.jpg", b"x")})
    assert served.uploads == []


def test_a_real_server_keeps_neither_photo_nor_name(served: Served, photo: bytes) -> None:
    with served.client() as client:
        answer = client.post(ROW, files={"photo": ("photo", photo)}, data={"file": "Jane Doe.jpg"})
    assert answer.status_code == 200
    assert answer.json()["csv"].startswith("Jane Doe.jpg,")
    assert served.uploads == []
    kept = [path for path in served.folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert not any(b"Jane Doe" in path.read_bytes() for path in kept)


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
        answer = ask_for("POST", path, files={"no photo": bytes(2 << 20)})
        assert answer.status_code == 400, path


def test_forms_as_other_clients_write_them(served: Served, photo: bytes) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="photo"\r\n\r\n%b\r\n--x--\r\n' % photo
    for kind in ("Multipart/Form-Data; Boundary=x", "multipart/form-data; boundary=x"):
        answer = httpx.post(
            f"{served.url}/v1/diagnose", content=part, headers={"content-type": kind}, timeout=60
        )
        assert answer.status_code in (200, 422), answer.text
        assert "form" not in answer.json().get("error", "")


def test_requests_that_are_no_browser_s(served: Served) -> None:
    def said(*lines: str) -> bytes:
        client = Client(served.port)
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


def test_serve_reaches_nobody(served: Served, photo: bytes) -> None:
    path = served.upload(photo, "picture.jpg")
    assert served.answer(path, "no-network").success
    assert calls_in(served.folder) == []


def test_serve_fetches_no_address_that_a_request_names(served: Served) -> None:
    address = "http://192.0.2.1/picture.png"
    file = {"path": address, "meta": {"_type": "gradio.FileData"}}
    body = {"data": [file], "fn_index": 0, "session_hash": "fetch"}
    asked = httpx.post(f"{served.url}/gradio_api/queue/join", json=body)
    assert asked.status_code == 400
    # Nor where the page names its uploads.
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        served.answer(address, "fetch")
    for route in (f"file={address}", f"proxy={address}", "openapi.json", "info", "deep_link"):
        answer = httpx.get(f"{served.url}/gradio_api/{route}")
        # A file's address gets the image that says `wait`, whatever it names.
        assert answer.status_code == 404 or b"Looking at the photo" in answer.content
    assert calls_in(served.folder) == []


def test_an_address_that_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port} .*another --port"):
            serve(tmp_path, port=port)
    with pytest.raises(UserError, match="--port 0 is not possible; give a port"):
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
    with pytest.raises(UserError, match=r"so not for 0.05 .*; remove"):
        serve(tiny_bundle, port=free_port(), miss_rate=0.05)
