"""Scans of a real server whose processes are killed; the detector finds dark spots."""

import io
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image
from served import Served, serving
from spot_scan import command, photo_with_spots

pytestmark = pytest.mark.long

SPOTS = 8


@pytest.fixture(scope="module")
def photo() -> bytes:
    file = io.BytesIO()
    Image.fromarray(photo_with_spots(SPOTS)).save(file, "PNG")
    return file.getvalue()


def take(client: httpx.Client, photo: bytes) -> str:
    answer = client.post("/v1/scan", files={"photo": ("Eve.png", photo)})
    assert answer.status_code == 202, answer.text
    url: str = answer.json()["url"]
    return url


def until(client: httpx.Client, url: str, *states: str) -> dict[str, Any]:
    deadline = time.monotonic() + 280
    while True:
        said: dict[str, Any] = client.get(url).json()
        if said["status"] in states:
            return said
        assert said["status"] not in ("done", "failed"), said
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def until_it_searches(client: httpx.Client, url: str) -> None:
    while not (said := until(client, url, "queued", "running"))["tiles_known"]:
        assert not said["error"]
        time.sleep(0.02)


def processes(server: Served, script: str) -> list[psutil.Process]:
    """Return the processes below a server that run a script."""
    below = psutil.Process(server.process.pid).children(recursive=True)
    return [one for one in below if works(one) and script in _words(one)]


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):  # it ended meanwhile
        return " ".join(process.cmdline())
    return ""


def works(process: psutil.Process) -> bool:
    """Tell whether a process is there, and not only its end, which nobody may have asked for."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def files(server: Served) -> list[Path]:
    found = server.folder.glob("skindx-scans-*/*/**/*")
    return [path for path in found if path.is_file()]


def test_killed_processes_change_nothing_and_a_deleted_scan_leaves_nothing(
    tiny_bundle: Path, tmp_path: Path, photo: bytes
) -> None:
    killed_once = command(f"die:1:{tmp_path}")
    with (
        serving(tiny_bundle, tmp_path, workers=1, scan_command=killed_once) as server,
        server.client() as client,
    ):
        (scans,) = tmp_path.glob("skindx-scans-*")
        assert scans.stat().st_mode & 0o077 == 0
        # A worker kills itself over its first answer, and its driver is killed while it searches.
        url = take(client, photo)
        until_it_searches(client, url)
        for driver in processes(server, "spot_scan.py"):
            driver.kill()
        done = until(client, url, "done", "failed")
        assert done["status"] == "done", done["error"]
        assert (tmp_path / "died-0").exists()
        found = done["result"]
        assert len(found["lesions"]) == SPOTS
        assert found["photos"][0]["failed_tiles"] == 0
        assert [path for path in files(server) if path.parent.name == "photos"] == []
        assert client.delete(url).status_code == 204
        assert files(server) == []
        # One that is deleted at work takes its processes with it.
        url = take(client, photo)
        until(client, url, "running")
        while not processes(server, "spot_worker.py"):
            time.sleep(0.05)
        assert client.delete(url).status_code == 204
        assert files(server) == []
        deadline = time.monotonic() + 60
        while processes(server, "spot_"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "Eve" not in server.stderr()


def test_a_killed_server_takes_its_scans_with_it(
    tiny_bundle: Path, tmp_path: Path, photo: bytes
) -> None:
    began: list[psutil.Process] = []
    # `serving` asserts that its server ended well, and this one is killed.
    with (
        suppress(AssertionError),
        serving(tiny_bundle, tmp_path, workers=1, scan_command=command()) as server,
        server.client() as client,
    ):
        until_it_searches(client, take(client, photo))
        began = processes(server, "spot_")
        server.process.kill()
    assert len(began) >= 2
    deadline = time.monotonic() + 60
    while list(tmp_path.glob("skindx-scans-*")) or any(map(works, began)):
        left = [str(path) for path in tmp_path.glob("skindx-scans-*/**/*")]
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
