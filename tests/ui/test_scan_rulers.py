"""`/v1/scan/ruler`: what it finds is for a person to confirm, and nothing of the photo stays."""

import asyncio
import base64
import io
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from painted_rulers import Painted, paint_ruler
from PIL import Image
from scan_client import use_scans
from spots import photo_with

from skindx.ui.http.scan_routes import scan_routes
from skindx.ui.scans.rulers import _LIMITS, RulerAnswer, Rulers, _decode, answer_photo
from skindx.ui.scans.scan_job import NoScans, ScanOrder, ScanServing
from skindx.ui.scans.scan_jobs import ScanBundle, ScanJobs
from skindx.workers.worker_pool import PoolSettings

RULER = Painted(ticks=45, size_wh=(800, 600))
COUNTS: Any = SimpleNamespace(scan_ended=lambda *_: None)
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
STUCK = (sys.executable, str(Path(__file__).parents[1] / "support/echo_worker.py"))


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def using(
    folder: Path,
    use: Callable[[httpx.AsyncClient], Awaitable[None]],
    command: tuple[str, ...] = (),
    limits: PoolSettings = _LIMITS,
    made_rulers: list[Rulers] | None = None,
) -> None:
    def made() -> ScanJobs:
        jobs = ScanJobs(folder, ScanBundle(Path("b"), "0"), ScanServing(), COUNTS, SLEEP)
        if command:
            jobs.rulers = Rulers(folder, 200, command, limits)
        if made_rulers is not None:
            made_rulers.append(jobs.rulers)
        return jobs

    use_scans(made, COUNTS, use)


def test_a_ruler_is_drawn_and_the_photo_is_gone(tmp_path: Path) -> None:
    photo = png(paint_ruler(RULER)[0])
    answer = _decode(answer_photo(photo, tmp_path, 10**8))
    assert isinstance(answer, RulerAnswer)
    found = answer.model_dump()
    assert found["mm_per_pixel"] == pytest.approx(1 / RULER.period, rel=0.01)
    assert found["pixels_a_tick"] == pytest.approx(RULER.period, rel=0.01)
    assert abs(found["ticks"] - RULER.ticks) <= 2
    assert found["unit"] == "millimetres"
    assert 0 < found["relative_error"] < 0.05
    assert "1 cm apart" in found["sentence"]
    kind, _, data = found["image"].partition(",")
    assert kind == "data:image/jpeg;base64"
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).astype(int)
    red = (drawn[..., 0] > 170) & (drawn[..., 1:].max(axis=2) < 90)  # the thick lines
    assert red.sum() > 100
    for damaged in (photo[:900], b"x"):
        said = answer_photo(damaged, tmp_path, 10**8)["error"]
        assert said.startswith("photo 1 cannot be scanned")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_one_process_answers_photos_one_after_the_other(tmp_path: Path) -> None:
    photo = png(paint_ruler(RULER)[0])

    async def use(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/scan/ruler", files={"photo": photo}, timeout=60)
        assert answer.status_code == 200
        assert answer.json()["unit"] == "millimetres"
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        before = children()
        for damaged in (photo[:900], b"x"):
            answer = await client.post("/v1/scan/ruler", files={"photo": damaged})
            assert answer.status_code == 422
            assert answer.json()["error"].startswith("Photo 1 cannot be scanned")
        assert children() == before

    using(tmp_path, use)
    assert list(tmp_path.iterdir()) == []


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_without_a_ruler_it_is_a_sentence_without_commands(tmp_path: Path) -> None:
    photo = png(photo_with([(90.0, 90.0, 12.0)], 400, 300))
    sentence = answer_photo(photo, tmp_path, 10**8)["error"]
    assert sentence.startswith("No ruler in photo 1 can be read")
    assert sentence.endswith("or measure a length and give the millimetres in a pixel.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "request_",
    [
        {"json": {}},
        {"files": [("photo", b"x")] * 2},
        {"files": {"photo": b"x"}, "data": {"scale_mm_per_pixel": "1"}},
        {"files": {"photo": bytes((20 << 20) + 1)}},
    ],
)
def test_a_wrong_form_is_refused(tmp_path: Path, request_: dict[str, Any]) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/scan/ruler", **request_)
        assert answer.status_code == 400
        assert list(tmp_path.iterdir()) == []

    using(tmp_path, use)


def test_one_photo_of_a_client_is_searched_at_a_time(tmp_path: Path) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(client.post("/v1/scan/ruler", files={"photo": b"x"}))
        await asyncio.sleep(0.01)
        answer = await client.post("/v1/scan/ruler", files={"photo": b"x"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
        first.cancel()  # as when a browser goes away
        with pytest.raises(asyncio.CancelledError):
            await first

    using(tmp_path, use, SLEEP)


def test_a_photo_that_keeps_a_worker_is_not_tried_again(tmp_path: Path) -> None:
    limits = PoolSettings(workers=1, work_s=0.5)

    async def use(client: httpx.AsyncClient) -> None:
        for _ in range(2):
            answer = await client.post("/v1/scan/ruler", files={"photo": b"hang"})
            assert answer.status_code == 422
            assert "took too long or broke off" in answer.json()["error"]
        assert "restarts=1" in str(rulers[0]._pool.status)

    rulers: list[Rulers] = []
    using(tmp_path, use, STUCK, limits, rulers)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["0.1", "none"], (0.1, None)),
        (["0.1"], (0.1, 0.1)),
        ([], ()),
        (["0.1", "0.2", "0.3"], "2 photos but 3 fields"),
        (["0.1", "near"], "not a number"),
    ],
)
def test_each_photo_may_have_a_scale(tmp_path: Path, values: list[str], said: Any) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        fields = {"scale_mm_per_pixel": values}
        photos = [("photo", b"x"), ("photo", b"y")]
        answer = await client.post("/v1/scan", files=photos, data=fields)
        if isinstance(said, str):
            assert answer.status_code == 400
            assert said in answer.json()["error"]
        else:
            assert answer.status_code == 202
            (folder,) = tmp_path.iterdir()
            assert ScanOrder.read(folder).mm_per_pixel == said

    using(tmp_path, use)


def test_a_server_that_cannot_scan_finds_no_rulers() -> None:
    app = FastAPI()
    app.include_router(scan_routes(None, NoScans(501, ["pyvips"], "scan"), COUNTS))

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.post("/v1/scan/ruler", files={"photo": b"x"})

    assert asyncio.run(asked()).status_code == 501
