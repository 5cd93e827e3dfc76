"""A server of a bundle without a detector, with one of its own: `skindx serve --detector`."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import spots
from pdf_words import words_of
from served import free_port
from shipped_folder import PLANTED, shipped
from spots import photo_with
from test_scan_api import SPOTS, encoded
from whole_photo import ThisProcess

from skindx.core.errors import JobError, UserError
from skindx.diagnosis.photo_checks import Refusal, Refused
from skindx.diagnosis.record import Photo
from skindx.diagnosis.report import pdf_sheet
from skindx.models.bundle.bundle import open_bundle
from skindx.models.shipped_detector import PlantedRecall, open_shipped
from skindx.scan.outputs.scan_pages import PAGE, PDF
from skindx.scan.work.scan_worker import ScanTaskRunner
from skindx.texts.catalogue import text
from skindx.ui.page.answer_html import PageScans, offer_html
from skindx.ui.page.diagnosis_page import close_ups
from skindx.ui.scans.scan_job import (
    ANSWER,
    LIST,
    PHOTOS,
    RESULTS,
    ScanOrder,
    ScanServing,
    photo_paths,
    why_no_scans,
)
from skindx.ui.scans.scan_jobs import ScanBundle, ScanJobs
from skindx.ui.scans.scan_process import _scan
from skindx.ui.serve import serve

PROMISE = PlantedRecall.model_validate(PLANTED).promise


def order(folder: Path, bundle: Path, detector: Path) -> None:
    """Write the order of a scan of one photo."""
    (folder / PHOTOS).mkdir(parents=True)
    ScanOrder(
        bundle=str(bundle),
        digest=open_bundle(bundle).digest,
        photos=1,
        mm_per_pixel=(),
        miss_rate=None,
        workers=1,
        most_megapixels=20,
        detector=str(detector),
        detector_digest=open_shipped(detector).digest,
    ).save(folder)
    photo_paths(folder, 1)[0].write_bytes(encoded(photo_with(SPOTS, 480, 300)))


def scan(folder: Path) -> None:
    load = partial(ScanTaskRunner, load=spots.load)
    _scan(folder, lambda _: None, partial(ThisProcess, make_runner=load))


def test_its_promise_stands_on_page_paper_and_in_the_answer(
    whole_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    folder = tmp_path / "job"
    order(folder, whole_bundle, shipped(tmp_path / "tiny"))
    scan(folder)
    answer = json.loads((folder / ANSWER).read_text())
    assert answer["missed"] == PROMISE
    assert len(answer["lesions"]) == len(SPOTS)
    assert answer["recall"] is None
    for file in (folder / LIST, folder / RESULTS / PAGE):
        assert PROMISE in file.read_text(encoding="utf-8").replace("\xa0", " "), file.name
    paper = " ".join(words_of((folder / RESULTS / PDF).read_bytes()).split())
    assert PROMISE in paper


def test_a_detector_that_changed_is_the_servers_fault(whole_bundle: Path, tmp_path: Path) -> None:
    folder, detector = tmp_path / "job", shipped(tmp_path / "tiny")
    order(folder, whole_bundle, detector)
    shipped(detector, learned_from="Other tiles.")
    with pytest.raises(JobError, match="changed"):
        scan(folder)


def test_a_server_orders_scans_with_its_detector(whole_bundle: Path, tmp_path: Path) -> None:
    bundle, detector = open_bundle(whole_bundle), open_shipped(shipped(tmp_path / "tiny"))
    assert why_no_scans(bundle, detector) is None
    unable = why_no_scans(bundle)
    assert unable is not None
    assert unable.status == 409
    counts: Any = SimpleNamespace(scan_ended=lambda *_: None)
    (tmp_path / "scans").mkdir()
    served = ScanBundle(bundle.path, bundle.digest, detector=detector)
    jobs = ScanJobs(tmp_path / "scans", served, ScanServing(), counts)

    async def take() -> ScanOrder:
        job = await jobs.submit((b"photo",), client="here", owner="", way="api")
        return ScanOrder.read(job.folder)

    import asyncio

    taken = asyncio.run(take())
    assert (taken.detector, taken.detector_digest) == (str(detector.path), detector.digest)


def test_the_page_offers_a_scan_for_what_was_refused_where_nothing_looks_for_lesions() -> None:
    jobs: Any = object()
    photos = {0: Photo(width=4000, height=3000, sha256="ab" * 32, boxes=None, no_boxes="none")}
    offered = partial(offer_html, photos, keeps=False)
    alone = PageScans(ScanServing(), jobs, looks=False)
    html = offered(alone, answered=False)
    assert text("scan_shows_body") in html
    assert text("scan_unanswered") in html
    assert 'data-photos="0"' in html
    assert offered(alone, answered=True) == ""
    assert offered(PageScans(ScanServing(), jobs), answered=False) == ""
    assert offered(PageScans(ScanServing(), looks=False), answered=False) == ""  # it cannot scan


def test_no_scan_is_offered_for_a_close_up_that_was_refused() -> None:
    refused = (Refusal(0, "unfamiliar", "Unlike."), Refusal(1, "modality", "Another kind."))
    for modality, close_up in (("dermoscopic", 0), ("clinical", 1)):
        bundle: Any = SimpleNamespace(images=SimpleNamespace(modality=modality))
        assert close_ups(Refused("modality", "No.", refusals=refused), bundle) == {close_up}


def test_a_folder_without_a_detector_is_refused_at_the_start(
    whole_bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="is no detector for scans"):
        serve(whole_bundle, port=free_port(), detector=tmp_path)
