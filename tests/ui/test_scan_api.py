"""`/v1/scan` over real answers of a scan for spots, and what it refuses."""

import asyncio
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import spots
from fastapi import FastAPI
from hostile_images import two_gigapixels
from PIL import Image
from scan_client import use_scans
from spots import photo_with
from whole_photo import ThisProcess

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import open_bundle
from skindx.scan.outputs.scan_result import not_a_diagnosis
from skindx.scan.work.scan_worker import ScanTaskRunner
from skindx.ui.app import most_bytes
from skindx.ui.http.api_routes import docs_html
from skindx.ui.http.forms import FORM_BYTES
from skindx.ui.http.scan_routes import scan_routes
from skindx.ui.http.server_metrics import Metrics
from skindx.ui.scans import scan_job
from skindx.ui.scans.scan_job import PHOTOS, ScanOrder, ScanServing, photo_paths, why_no_scans
from skindx.ui.scans.scan_jobs import ScanBundle, ScanJobs
from skindx.ui.scans.scan_process import _scan, sentence_of
from skindx.workers.worker_pool import PoolStatus

SPOTS = [(100.0 + 90 * x, 80.0 + 110 * y, 8.0 + 2 * x) for x in range(4) for y in range(2)]
STATUS = PoolStatus(workers=1, ready=1, waiting=0, capacity=1, restarts=0, problem="")
METERED: Any = SimpleNamespace(
    spec=SimpleNamespace(name="fake"),
    metrics=lambda: None,
    taxonomy=SimpleNamespace(keys=("nevus",)),
)
COPY = "import sys, shutil; shutil.copytree({!r}, sys.argv[1], dirs_exist_ok=True)"
ENDED = "; print('{\"ended\": true}', flush=True)"


def encoded(pixels: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(file, kind, **options)
    return file.getvalue()


WIDE = photo_with(SPOTS, 480, 300)
TURNED = Image.fromarray(WIDE[::-1])


def ordered(folder: Path, bundle: Path, photo: bytes) -> Path:
    """Return the folder of a job with one photo."""
    order = ScanOrder(
        bundle=str(bundle),
        digest=open_bundle(bundle).digest,
        photos=1,
        mm_per_pixel=(0.1,),
        miss_rate=None,
        workers=1,
        most_megapixels=20,
    )
    (folder / PHOTOS).mkdir(parents=True)
    order.save(folder)
    photo_paths(folder, 1)[0].write_bytes(photo)
    return folder


def scan_here(folder: Path) -> list[dict[str, Any]]:
    """Do a job in this process; return what it said."""
    said: list[dict[str, Any]] = []
    crew = partial(ThisProcess, make_runner=partial(ScanTaskRunner, load=spots.load))
    _scan(folder, said.append, crew)
    return said


@pytest.fixture(scope="module")
def done(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a scan that is done."""
    folder = ordered(tmp_path_factory.mktemp("done") / "job", tiny_bundle, encoded(WIDE))
    said = scan_here(folder)
    assert [one["stage"] for one in said if one["done"] == one["known"]][:2] == [
        "opening",
        "1-tiles",
    ]
    assert not (folder / PHOTOS).exists()
    return folder


@pytest.mark.parametrize(
    ("photo", "said"),
    [
        (np.full((300, 400, 3), (40, 120, 90), np.uint8), "shows no skin"),
        (photo_with([(150, 150, 120)], 300, 300), "One lesion fills photo 1"),
        (WIDE[:200, :200], "has 200 x 200 pixels"),
        (encoded(Image.fromarray(WIDE).convert("CMYK"), "JPEG"), "CMYK"),
        (encoded(Image.new("I;16", (400, 300))), "16 bits"),
        (encoded(WIDE, "JPEG")[:3000], "cut short"),
        (
            encoded(Image.new("RGB", (6000, 6000)), "JPEG", quality=5),
            "6,000 x 6,000 pixels, and a scan takes at most 20,000,000",
        ),
        (encoded(WIDE, "WEBP", save_all=True, append_images=[TURNED]), "2 images"),
        (two_gigapixels(), "44,720 x 44,720 pixels, and a scan takes at most 20,000,000"),
        (b"no photo", "photo 1 cannot be scanned"),
    ],
)
def test_what_cannot_be_scanned_is_one_sentence_without_a_path(
    tmp_path: Path, tiny_bundle: Path, photo: Any, said: str
) -> None:
    data = photo if isinstance(photo, bytes) else encoded(photo)
    folder = ordered(tmp_path / "job", tiny_bundle, data)
    with pytest.raises(UserError) as refused:
        scan_here(folder)
    sentence = sentence_of(refused.value, folder)
    assert said in sentence
    assert str(tmp_path) not in sentence
    assert "`" not in sentence
    assert "photo 1" in sentence
    assert sentence.endswith(".")


Ask = Callable[..., Any]


def using(
    folder: Path, done: Path, use: Callable[[httpx.AsyncClient], Any], **settings: Any
) -> Metrics:
    """Ask a server whose scans find what `done` holds."""
    metrics = Metrics(METERED, "0", lambda: STATUS)
    command = (sys.executable, "-c", COPY.format(str(done)) + ENDED)

    serving = ScanServing.model_validate(settings)
    served = ScanBundle(Path("b"), "0")
    use_scans(lambda: ScanJobs(folder, served, serving, metrics, command), metrics, use)
    return metrics


def test_a_scan_is_taken_asked_for_and_deleted(tmp_path: Path, done: Path) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        client.headers["x-user"] = "anna"
        taken = await client.post("/v1/scan", files={"photo": encoded(WIDE)})
        assert taken.status_code == 202
        url = taken.headers["location"]
        assert taken.json()["url"] == url
        assert taken.json()["status"] in ("queued", "running")
        early = await client.get(f"{url}/page")
        assert (early.status_code, early.json()["error"].startswith("The scan is not done")) == (
            409,
            True,
        )
        while (said := (await client.get(url)).json())["status"] != "done":
            assert said["result"] is None
            await asyncio.sleep(0.02)
        found = said["result"]
        assert found["notice"] == not_a_diagnosis()
        assert [lesion["rank"] for lesion in found["lesions"]] == [*range(1, len(SPOTS) + 1)]
        for lesion in found["lesions"]:
            x1, y1, x2, y2 = lesion["box"]
            nearest = min(np.hypot((x1 + x2) / 2 - x, (y1 + y2) / 2 - y) for x, y, _ in SPOTS)
            assert nearest < 3
            assert sum(lesion["probabilities"].values()) == pytest.approx(1)
            assert lesion["most_likely"] in found["names"]
            assert lesion["diameter_mm"] == pytest.approx(0.1 * lesion["diameter_px"])
            assert lesion["difference"]["compared_with"] == len(SPOTS) - 1
        (photo,) = found["photos"]
        assert (photo["width"], photo["height"], photo["failed_tiles"]) == (480, 300, 0)
        assert photo["tiles"] > photo["tiles_without_skin"] >= 0
        assert found["recall"] is None
        assert "was not measured" in found["missed"]
        assert said["expires_at"]
        page = await client.get(f"{url}/page?download")
        assert page.headers["content-type"].startswith("text/html")
        assert "attachment" in page.headers["content-disposition"]
        assert page.text.count('id="lesion-') == len(SPOTS)
        assert "logout" not in page.text  # a file that is kept logs nobody out
        shown = await client.get(f"{url}/page")
        assert '<header>\n<form method="post" action="/logout"><button>' in shown.text
        listing = await client.get(f"{url}/list")
        assert listing.text.count("sx-scan-rank") == len(SPOTS)
        assert (await client.delete(url)).status_code == 204
        for gone in (url, f"{url}/page", f"{url}/list"):
            answer = await client.get(gone)
            assert answer.status_code == 404
            assert "Send the photos again" in answer.json()["error"]
        assert (await client.delete(url)).status_code == 404

    text = using(tmp_path, done, use).text().decode()
    assert 'skindx_scans_total{outcome="done",way="api"} 1.0' in text
    assert 'skindx_scan_seconds_count{way="api"} 1.0' in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"json": {}}, "multipart"),
        ({"files": [("photo", b"x")] * 4}, "4 photos"),
        ({"files": {"photo": b"x"}, "data": {"age": "3"}}, "unknown field 'age'"),
        ({"files": {"photo": b"x"}, "data": {"scale_mm_per_pixel": "far"}}, "not a number"),
        (
            {"files": {"photo": b"x"}, "data": {"scale_mm_per_pixel": "nan"}},
            "value nan of scale_mm_per_pixel",
        ),
        (
            {"files": {"photo": b"x"}, "data": {"scale_mm_per_pixel": "99"}},
            "value 99 of scale_mm_per_pixel",
        ),
        ({"files": {"photo": bytes((20 << 20) + 1)}}, "photo 1 has more than 20 MB"),
    ],
)
def test_a_wrong_form_begins_nothing(
    tmp_path: Path, done: Path, request_: dict[str, Any], said: str
) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/scan", **request_)
        assert answer.status_code == 400
        assert said.lower() in answer.json()["error"].lower()
        assert list(tmp_path.iterdir()) == []

    using(tmp_path, done, use)


def test_photos_may_come_to_every_route_that_takes_some() -> None:
    for route in ("/v1/diagnose", "/v1/scan", "/v1/scan/ruler"):
        assert most_bytes(route) == most_bytes(f"{route}/") == FORM_BYTES
    for route in ("/v1/scan/any", "/v1/scan/ruler/x", "/v1/diagnose-all", "/v1/health", "/"):
        assert most_bytes(route) == 1 << 20


def test_too_many_scans_are_told_when_to_come_back(tmp_path: Path, done: Path) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for status in (202, 429):
            answer = await client.post("/v1/scan", files={"photo": b"x"})
            assert answer.status_code == status
        assert answer.headers["retry-after"] == "30"
        assert answer.json()["error"].endswith("try again in 30 seconds.")

    using(tmp_path, done, use, per_client=1)


def test_a_server_that_cannot_scan_says_why(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(tiny_bundle)
    assert why_no_scans(bundle) is None
    without: Any = SimpleNamespace(spec=SimpleNamespace(detector=None))
    monkeypatch.setattr(scan_job, "missing_modules", lambda *names: list(names[:1]))
    for one, status, said in ((without, 409, "no detector"), (bundle, 501, "`scan`")):
        unable = why_no_scans(one)
        metrics = Metrics(METERED, "0", lambda: STATUS)
        app = FastAPI()
        app.include_router(scan_routes(None, unable, metrics))

        async def asked(app: FastAPI = app) -> tuple[httpx.Response, httpx.Response]:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                taken = await client.post("/v1/scan", files={"photo": b"x"})
                return taken, await client.get("/v1/scan/any")

        taken, read = asyncio.run(asked())
        assert (taken.status_code, said in taken.json()["error"]) == (status, True)
        assert read.status_code == 404
        assert "/v1/scan/{scan}" in docs_html(app.openapi())
