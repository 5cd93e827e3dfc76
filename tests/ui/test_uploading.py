"""Uploads of the page: within quotas, whole or not at all, deleted after a while."""

import asyncio
import threading
from pathlib import Path

import httpx
import pytest
from echo_app import ask, echo
from raw_server import Client, running

from skindx.diagnosis.case import MAX_PHOTOS
from skindx.diagnosis.photo_checks import MAX_BYTES
from skindx.ui import uploads as uploading
from skindx.ui.http.asgi import USER, App, Message, Receive, Send
from skindx.ui.http.request_limits import BodyLimit, ConnectionQuota, Pace
from skindx.ui.http.server import ConnectionTimeouts
from skindx.ui.uploads import REQUEST_BYTES, ROUTE, UploadFolder, Uploads


def files_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


def upload(app: App, *photos: bytes, name: str = "photo.jpg") -> httpx.Response:
    return ask(app, "POST", ROUTE, files=[("files", (name, photo)) for photo in photos])


def as_user(app: App, user: str) -> App:
    async def named(scope: Message, receive: Receive, send: Send) -> None:
        await app({**scope, USER: user}, receive, send)

    return named


def test_photos_come_back_as_private_paths_without_their_names(tmp_path: Path) -> None:
    uploads = Uploads(echo, UploadFolder(tmp_path))
    answer = upload(uploads, b"one", b"two", name="../../anna.jpg")
    paths = [Path(path) for path in answer.json()]
    assert [path.read_bytes() for path in paths] == [b"one", b"two"]
    for path in paths:
        assert path.parents[1] == tmp_path.resolve()
        assert "anna" not in str(path)
        assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    again = Path(upload(uploads, b"one").json()[0])
    assert again not in paths  # deleting one person's photo leaves another's alone
    assert ask(uploads, "GET", ROUTE).status_code == 405
    assert ask(uploads, "GET", "/other").json() == [None, 0]


def test_what_is_no_form_of_photos_leaves_nothing(tmp_path: Path) -> None:
    uploads = Uploads(echo, UploadFolder(tmp_path))
    kind = {"content-type": "multipart/form-data; boundary=x"}
    head = b'--x\r\ncontent-disposition: form-data; name="files"; filename="a"\r\n\r\nphoto'
    for content, headers in (
        (b"", {}),
        (b"photo", {"content-type": "image/jpeg"}),
        (b"photo", {"content-type": "multipart/form-data"}),
        (b"photo", kind),
        (head[:30], kind),
        (head.replace(b'; name="files"', b"") + b"\r\n--x--\r\n", kind),
        (head.replace(b'; filename="a"', b"") + b"\r\n--x--\r\n", kind),
        (head.replace(b'"files"', b'"other"') + b"\r\n--x--\r\n", kind),
    ):
        answer = ask(uploads, "POST", ROUTE, content=content, headers=headers)
        assert answer.status_code == 400, content
    assert upload(uploads, *[b"x"] * (MAX_PHOTOS + 1)).status_code == 400
    assert upload(uploads, bytes(MAX_BYTES + 1)).status_code == 413
    assert files_in(tmp_path) == []


def test_one_client_cannot_fill_the_folder_and_all_together_neither(tmp_path: Path) -> None:
    folder = UploadFolder(tmp_path, ConnectionQuota(10_000, 15_000))
    uploads = Uploads(echo, folder)
    anna, ben = as_user(uploads, "anna"), as_user(uploads, "ben")
    paths = [Path(upload(anna, bytes(4000)).json()[0]) for _ in range(2)]
    full = upload(anna, bytes(4000))
    assert full.status_code == 429
    assert int(full.headers["retry-after"]) > 0
    assert upload(ben, bytes(4000)).status_code == 200
    assert upload(ben, bytes(4000)).status_code == 503
    paths[0].unlink()  # as a diagnosis does
    paths[0].parent.rmdir()
    assert upload(anna, bytes(4000)).status_code == 200
    assert len([path for path in files_in(tmp_path) if path.is_file()]) == 3


def test_a_photo_that_nobody_asks_about_is_deleted(tmp_path: Path) -> None:
    folder = UploadFolder(tmp_path, ConnectionQuota(5000, 5000), life_s=0.0)
    assert upload(Uploads(echo, folder), bytes(4000)).status_code == 200
    folder.sweep()
    assert files_in(tmp_path) == []
    assert folder.quota.held == 0


def test_a_disk_without_room_is_one_sentence(tmp_path: Path) -> None:
    folder = UploadFolder(tmp_path / "gone")
    answer = upload(Uploads(echo, folder), b"photo")
    assert answer.status_code == 507
    assert "no room" in answer.json()["error"]
    assert folder.quota.held == 0


def test_broken_and_trickling_uploads_leave_nothing_and_others_are_answered(tmp_path: Path) -> None:
    held = ConnectionQuota(1 << 20, 2 << 20)
    folder = UploadFolder(tmp_path)
    limited = BodyLimit(
        Uploads(serving_nothing, folder), lambda path: REQUEST_BYTES, held, Pace(grace_s=1.0)
    )
    head = (
        f"POST {ROUTE} HTTP/1.1\r\nHost: h\r\nContent-Length: 400000\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        '--x\r\ncontent-disposition: form-data; name="files"; filename="a"\r\n\r\n'
    ).encode()
    with running(limited, ConnectionTimeouts(header_s=2)) as port:
        broken, slow = Client(port), [Client(port) for _ in range(8)]
        broken.send(head + bytes(100_000))
        broken.close()
        for client in slow:
            client.send(head + bytes(10_000))
        assert Client(port, "127.0.1.9").get() == 200
        for client in slow:
            client.ended_after_s(trickle=b"x")
        assert held.held == 0
    assert files_in(tmp_path) == []


async def serving_nothing(scope: Message, receive: Receive, send: Send) -> None:
    """Answer everything with 200."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
    else:
        await echo(scope, receive, send)


def test_a_sweep_in_the_middle_of_a_write_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Photos of one case arrive side by side; each upload sweeps before it is written."""
    begun, go_on = threading.Event(), threading.Event()
    write = uploading._write

    def slowly(paths: list[Path], photos: list[bytes]) -> None:
        begun.set()
        go_on.wait(10)
        write(paths, photos)

    monkeypatch.setattr(uploading, "_write", slowly)
    folder = uploading.UploadFolder(tmp_path)

    async def both() -> list[Path]:
        adding = asyncio.create_task(folder.add("a", [b"photo"]))
        await asyncio.to_thread(begun.wait, 10)
        folder.sweep()
        go_on.set()
        return await adding

    (path,) = asyncio.run(both())
    folder.sweep()
    assert path.read_bytes() == b"photo"
    assert folder.quota.exceeded("a", uploading._CLIENT_BYTES) == "client"
    path.unlink()
    folder.sweep()
    assert folder.quota.exceeded("a", uploading._CLIENT_BYTES) == ""


@pytest.mark.parametrize("coding", ["gzip", "identity, br", "x-own", "GZIP"])
def test_a_body_that_is_compressed_is_refused_as_such(coding: str) -> None:
    limited = BodyLimit(echo, lambda path: 1000, ConnectionQuota(5000))
    for path in ("/v1/diagnose", "/login", ROUTE):
        answer = ask(limited, "POST", path, content=b"x", headers={"content-encoding": coding})
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
        assert "compressed" in answer.json()["error"]
    plain = ask(limited, "POST", "/", content=b"x", headers={"content-encoding": "identity"})
    assert plain.status_code == 200
