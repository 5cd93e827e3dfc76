"""The server as a hostile client sees it; no browser needed."""

import json
import shutil
import socket
from pathlib import Path

import httpx
import pytest
from served import Served
from skin_photo import skin_photo

from skindx.diagnosis.diagnose import MAX_BYTES
from skindx.errors import UserError
from skindx.ui.serve import serve


@pytest.fixture
def photo() -> bytes:
    return skin_photo(100, 80)


def test_an_upload_is_gone_with_its_answer(served: Served, photo: bytes) -> None:
    path = served.upload(photo, "lesion.jpg")
    assert Path(path).read_bytes() == photo
    assert Path(path).parents[1].stat().st_mode & 0o077 == 0
    answer = served.answer(path, "gone")
    assert answer["success"]
    assert "sx-advice" in json.dumps(answer)
    assert served.uploads == []
    assert not Path(path).parent.exists()


def test_nobody_reads_an_upload_back(served: Served, photo: bytes) -> None:
    path = served.upload(photo, "private.jpg")
    answer = httpx.get(f"{served.url}/gradio_api/file={path}")
    assert photo not in answer.content
    assert b"Looking at the picture" in answer.content
    served.answer(path, "read-back")


def test_a_file_of_the_server_is_neither_shown_nor_deleted(served: Served, photo: bytes) -> None:
    secret = served.folder / "secret.jpg"
    secret.write_bytes(photo)
    for number, path in enumerate((secret, Path("/etc/passwd"))):
        answer = served.answer(str(path), f"secret-{number}")
        assert not answer["success"]
        assert "sx-" not in json.dumps(answer)
        assert path.exists()


@pytest.mark.parametrize("name", ["notes.jpg", "../../up.png", "a<b>.jpg"])
def test_what_is_no_picture_gets_a_sentence(served: Served, name: str) -> None:
    answer = served.answer(served.upload(b"not a picture", name), f"bad-{name}")
    told = json.dumps(answer)
    assert answer["success"]
    assert "The file is no picture" in told
    assert "Traceback" not in told
    assert served.uploads == []


def test_a_file_over_the_limit_is_refused_and_not_kept(served: Served) -> None:
    files = {"files": ("big.jpg", bytes(MAX_BYTES + 1))}
    assert httpx.post(f"{served.url}/gradio_api/upload", files=files).status_code == 413
    assert served.uploads == []


@pytest.mark.parametrize("body", [b"[", b"[" * 100_000, b" " * 2_000_000])
def test_a_hostile_request_is_refused(served: Served, body: bytes) -> None:
    answer = httpx.post(f"{served.url}/gradio_api/queue/join", content=body)
    assert answer.status_code == 400


def test_the_browser_is_told_to_talk_to_nobody_else(served: Served) -> None:
    headers = httpx.get(served.url).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    # Nobody writes this page's program interface down, so nobody reads it.
    for route in ("openapi.json", "docs", "monitoring", "gradio_api/info"):
        assert httpx.get(f"{served.url}/{route}").status_code in (403, 404)


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
